#!/usr/bin/env python3
"""Makes GPT-2's tokenizer, gpt2_tokenizer.bin (372 kB), in the root of the repository, from OpenAI's list of merges,
vocab.bpe, which it fetches there.

    python3 dev/data/vocab.py                  # fetches vocab.bpe
    python3 dev/data/vocab.py --merges FILE    # fetches nothing: FILE is vocab.bpe, or merges.txt of a model
"""
import os
import struct

import common
from common import Problem

URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe"
SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
MERGES, OUTPUT = "vocab.bpe", "gpt2_tokenizer.bin"
OUTPUT_SHA256 = "6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13"  # made of the published vocab.bpe
MOST_BYTES = 255  # a length is a byte
VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
ORDER = VISIBLE + [byte for byte in range(256) if byte not in VISIBLE]  # the bytes in the order of their ids
SYMBOLS = [chr(byte) for byte in VISIBLE] + [chr(256 + i) for i in range(256 - len(VISIBLE))]  # how merges spell them


def tokens_of(name, merges):
    """The tokens, in the order of their ids, that the text of a list of merges makes. name begins messages."""
    byte_of = dict(zip(SYMBOLS, ORDER))
    tokens = {bytes([byte]): None for byte in ORDER}
    lines = merges.splitlines()
    first = 1 if lines and lines[0].startswith("#version") else 0
    for number, line in enumerate(lines[first:], first + 1):
        try:
            left, right = (bytes(byte_of[symbol] for symbol in word) for word in line.split(" "))
        except (KeyError, ValueError):
            left = right = None
        if left not in tokens or right not in tokens or left + right in tokens or len(left + right) > MOST_BYTES:
            raise Problem(f"{name}: line {number}: expected two tokens of earlier lines with one space between them, "
                          f"which make a new one of at most {MOST_BYTES} bytes")
        tokens[left + right] = None
    return [*tokens, b"<|endoftext|>"]


def make(merges, folder):
    """Writes llm.c's gpt2_tokenizer.bin, version 2, of a list of merges. Returns its path and the number of tokens."""
    path = os.path.join(folder, OUTPUT)
    with open(merges, encoding="utf-8", newline="") as file:
        tokens = tokens_of(common.shown(merges), file.read())
    header = struct.pack("<256I", 20240328, 2, len(tokens), len(tokens) - 1, *[0] * 252)
    common.write_file(path, header + b"".join(bytes([len(token)]) + token for token in tokens))
    return path, len(tokens)


def find(options):
    """The path of the tokenizer that --vocab names, or of GPT-2's in the root, which is made if it is not there."""
    path = os.path.join(common.ROOT, OUTPUT)
    if options.vocab:
        return options.vocab
    if not os.path.exists(path):
        common.fetch_url(URL, os.path.join(common.ROOT, MERGES), SHA256)
        common.note(f"made {common.shown(make(os.path.join(common.ROOT, MERGES), common.ROOT)[0])}")
    elif common.file_sha256(path) != OUTPUT_SHA256:
        raise Problem(f"{common.shown(path)}: is not GPT-2's (checksum); remove it, or name it with --vocab if you "
                      "mean it")
    return path


def main():
    parser = common.parser(__doc__, ".", vocab=False)
    parser.add_argument("--merges", metavar="FILE", help="the list of merges, instead of fetching vocab.bpe")
    options = parser.parse_args()
    out = os.path.normpath(options.out)  # the root, without a dot at its end
    os.makedirs(out, exist_ok=True)
    if not options.merges:
        options.merges = os.path.join(out, MERGES)
        common.fetch_url(URL, options.merges, SHA256)
    elif common.file_sha256(options.merges) != SHA256:
        common.note(f"{common.shown(options.merges)}: is not GPT-2's vocab.bpe (checksum)")
    path, tokens = make(options.merges, out)
    print(f"{common.shown(path)}: {tokens} tokens")


if __name__ == "__main__":
    common.run("vocab.py", main)
