#!/usr/bin/env python3
"""Makes GPT-2's tokenizer, gpt2_tokenizer.bin (372 kB), in the root of the repository, from OpenAI's list of merges,
vocab.bpe, which it fetches there.

    python3 dev/data/vocab.py                  # fetches vocab.bpe
    python3 dev/data/vocab.py --merges FILE    # fetches nothing: FILE is vocab.bpe, or merges.txt of a model

vocab.bpe is a file of OpenAI's public GPT-2 release; its checksum is known here, so any copy of it does (--mirror).
"""
import os

import common
import guard
import text
from common import Problem

MOST_MERGES, MOST_BYTES = 65535 - 257, 255  # ids are uint16, and a length is a byte


def tokens_of(name, merges):
    """The tokens, in the order of their ids, that the text of a list of merges makes. name begins messages."""
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    order = visible + [b for b in range(256) if b not in visible]
    byte_of = {chr(b if b in visible else 256 + i - len(visible)): b for i, b in enumerate(order)}
    tokens = {bytes([b]): None for b in order}
    lines = merges.split("\n")
    if lines.pop() != "":
        raise Problem(f"{name}: line {len(lines) + 1}: ends in mid-line (truncated?)")
    first = 1 if lines and lines[0].startswith("#version") else 0
    for number, line in enumerate(lines[first:], first + 1):
        where, pair = f"{name}: line {number}", line.split(" ")
        try:
            left, right = (bytes(byte_of[character] for character in symbol) for symbol in pair)
        except (KeyError, ValueError):
            raise Problem(f"{where}: expected two symbols of GPT-2's alphabet with one space between them") from None
        if left not in tokens or right not in tokens:
            raise Problem(f"{where}: a symbol is neither a byte nor made by an earlier line")
        if left + right in tokens or len(left + right) > MOST_BYTES:
            raise Problem(f"{where}: makes a token that is there already, or has more than {MOST_BYTES} bytes")
        tokens[left + right] = None
    if not 0 < len(tokens) - 256 <= MOST_MERGES:
        raise Problem(f"{name}: has {len(tokens) - 256} merges, expected 1 to {MOST_MERGES}")
    return [*tokens, b"<|endoftext|>"]


def main():
    parser = common.parser(__doc__, ".")
    parser.add_argument("--merges", type=common.existing_file, metavar="FILE", help="the list of merges, instead of "
                        "fetching vocab.bpe")
    options = common.parse(parser)
    options.out = os.path.normpath(options.out)  # the root, without a dot at its end
    if not options.merges:
        fetched = text.fetch_vocab(options, options.out)
        options.merges = os.path.join(options.out, "vocab.bpe")
        print(f"{common.show_path(options.merges)}: {'fetched' if fetched else 'already there'}, verified")
    elif common.file_sha256(options.merges) != text.VOCAB_SHA256:
        common.note(f"{common.show_path(options.merges)}: is not GPT-2's vocab.bpe (checksum)")
    name = common.show_path(options.merges)
    try:
        tokens = tokens_of(name, guard.read_file(options.merges).decode())
    except UnicodeDecodeError:
        raise Problem(f"{name}: is no list of merges: it is not UTF-8") from None
    path = os.path.join(options.out, "gpt2_tokenizer.bin")
    common.write_atomically(path, text.tokenizer_bytes(tokens))
    print(f"{common.show_path(path)}: {len(tokens)} tokens")


if __name__ == "__main__":
    common.run("vocab.py", main)
