#!/usr/bin/env python3
"""Makes dev/data/tinyshakespeare/tiny_shakespeare_train.bin (305,260 tokens) and tiny_shakespeare_val.bin (32,768).

    python3 dev/data/tinyshakespeare.py

Fetches the customary megabyte of Shakespeare from the repository karpathy/char-rnn. Each speech is a document: the text
is cut behind each empty line, end-of-text precedes each piece. The first 32,768 tokens are for validation.
"""
import os
import tempfile

import common
import text
import vocab
from common import Problem

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SOURCE, TRAIN, VAL = "tiny_shakespeare.txt", "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"
VAL_TOKENS, TOKENS = 32768, 338028  # TOKENS: with GPT-2's vocabulary


def main():
    options = common.parser(__doc__, "dev/data/tinyshakespeare").parse_args()
    common.open_folder(options.out)
    source = os.path.join(options.out, SOURCE)
    common.fetch_url(URL, source, SHA256)
    tokenizer = vocab.find(options)
    with open(source, encoding="utf-8", newline="") as file:
        pieces = file.read().split("\n\n")
    speeches = [{"text": piece + "\n\n"} for piece in pieces[:-1]] + [{"text": pieces[-1]}]
    with tempfile.TemporaryDirectory(prefix=".work", dir=options.out) as work:
        text.tokenize(tokenizer, os.path.join(work, "part"),
                      ["--jsonl", "text", "--val-tokens", VAL_TOKENS, "--shard-size", text.MOST_TOKENS, "-"],
                      [text.json_lines(speeches)])
        made = [os.path.join(work, name) for name in ("part_train_000001.bin", "part_val_000000.bin")]
        tokens = sum(map(text.shard_tokens, made))
        if tokens != TOKENS and common.file_sha256(tokenizer) == vocab.OUTPUT_SHA256:
            raise Problem(f"{SOURCE}: {tokens} tokens, expected {TOKENS}; the tokenizer is not right here (make test)")
        for path, name in zip(made, (TRAIN, VAL)):
            os.replace(path, os.path.join(options.out, name))
    text.print_shards(options.out, [TRAIN, VAL])


if __name__ == "__main__":
    common.run("tinyshakespeare.py", main)
