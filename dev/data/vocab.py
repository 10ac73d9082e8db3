#!/usr/bin/env python3
"""Makes GPT-2's tokenizer, gpt2_tokenizer.bin (372 kB), in the root of the repository, from OpenAI's list of merges,
vocab.bpe, which it fetches there.

    python3 dev/data/vocab.py                  # fetches vocab.bpe
    python3 dev/data/vocab.py --merges FILE    # fetches nothing: FILE is vocab.bpe, or merges.txt of a model

vocab.bpe is a file of OpenAI's public GPT-2 release; its checksum is known here, so any copy of it does (--mirror).
"""
import os

import common
import text


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
    os.makedirs(options.out, exist_ok=True)
    path, tokens = text.make_tokenizer(options.merges, options.out)
    print(f"{common.show_path(path)}: {tokens} tokens")


if __name__ == "__main__":
    common.run("vocab.py", main)
