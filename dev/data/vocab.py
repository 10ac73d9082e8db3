#!/usr/bin/env python3
"""Fetches GPT-2's list of merges, vocab.bpe (456 kB), into the root of the repository, where tokenize looks for it.

    python3 dev/data/vocab.py

It is the file of OpenAI's public GPT-2 release; its checksum is known here, so any copy of it does (--mirror).
"""
import os

import common
import text


def main():
    options = common.parse(common.parser(__doc__, "."))
    options.out = os.path.normpath(options.out)  # the root, without a dot at its end
    fetched = text.fetch_vocab(options, options.out)
    path = common.show_path(os.path.join(options.out, "vocab.bpe"))
    print(f"{path}: {'fetched' if fetched else 'already there'}, verified")


if __name__ == "__main__":
    common.run("vocab.py", main)
