#!/usr/bin/env python3
"""OpenAI's tiktoken with GPT-2's vocabulary, built from vocab.bpe: the reference for llmc/data/tokenizer.h.

    pip install tiktoken==0.14.0
    python3 dev/tiktoken_gpt2.py vocab.bpe dev/test/fixtures/gpt2_encodings.txt

prints the file with ids computed anew. A line is a text and its ids: the UTF-8 bytes in hexadecimal, then the ids. A
text is added as a line without ids.
"""
import sys

import tiktoken

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def gpt2(path):
    """The tiktoken.Encoding of a vocab.bpe file, in which a byte is a visible letter."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    values = visible + sorted(set(range(256)) - set(visible))
    byte_of = dict(zip(map(chr, [*visible, *range(256, 512)]), values))
    ranks = {bytes([byte]): i for i, byte in enumerate(values)}
    with open(path, encoding="utf-8") as file:
        for merge in file.read().split("\n")[1:-1]:
            ranks[bytes(byte_of[letter] for letter in merge.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={"<|endoftext|>": len(ranks)})


if __name__ == "__main__":
    encoding = gpt2(sys.argv[1])
    with open(sys.argv[2], encoding="ascii") as lines:
        for text in (line.split()[0] for line in lines):
            print(text, *encoding.encode_ordinary(bytes.fromhex(text).decode()))
