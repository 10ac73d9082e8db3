#!/usr/bin/env python3
"""Makes dev/data/tinyshakespeare/tiny_shakespeare_train.bin (305,260 tokens) and tiny_shakespeare_val.bin (32,768).

    python3 dev/data/tinyshakespeare.py

Fetches the customary megabyte of Shakespeare from the repository karpathy/char-rnn. Each speech is a document: the text
is cut behind each empty line, end-of-text precedes each piece. The first 32,768 tokens are for validation.
"""
import common
import download
import guard
import text
from common import Problem

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
BYTES, SHA256 = 1115394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SOURCE, TRAIN, VAL = "tiny_shakespeare.txt", "tiny_shakespeare_train.bin", "tiny_shakespeare_val.bin"
VAL_TOKENS = 32768
TOKENS = 338028  # of the published file with GPT-2's vocabulary


def speeches(path):
    with guard.open_file(path, "r", encoding="utf-8", newline="") as file:
        pieces = file.read().split("\n\n")
    return [piece + "\n\n" for piece in pieces[:-1]] + pieces[-1:]


def make(folder, vocab, made):
    with text.Work(folder) as work:
        text.tokenize_documents(vocab, work.prefix, speeches(folder.join(SOURCE)), "--val-tokens", str(VAL_TOKENS),
                                "--shard-size", str(text.MOST_TOKENS))
        products = [text.Product(TRAIN, work.prefix + "_train_000001.bin"),
                    text.Product(VAL, work.prefix + "_val_000000.bin")]
        tokens = sum(text.shard_tokens(product.path) for product in products)
        if (made["source"], made["vocab"]) == (SHA256, text.TOKENIZER_SHA256) and tokens != TOKENS:
            raise Problem(f"{SOURCE}: {tokens} tokens, expected {TOKENS}; the tokenizer is not right here (make test)")
        text.publish(folder, products, made)


def main():
    parser = common.parser(__doc__, "dev/data/tinyshakespeare")
    text.add_vocab(parser)
    options = common.parse(parser)
    with common.Folder(options.out) as folder:
        source = download.pinned(options, URL, SOURCE, BYTES, SHA256)
        download.fetch(options, folder, [source], extra_disk=BYTES)
        vocab = text.find_vocab(options, folder)
        made = {"source": source.sha256, "vocab": common.file_sha256(vocab)}
        here = folder.is_made([TRAIN, VAL], made, options.verify)
        if not here:
            make(folder, vocab, made)
        text.print_products(folder, [TRAIN, VAL], here)


if __name__ == "__main__":
    common.run("tinyshakespeare.py", main)
