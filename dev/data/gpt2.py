#!/usr/bin/env python3
"""Fetches the weights of OpenAI's GPT-2, in Hugging Face's form, for --init gpt2, gpt2-medium, gpt2-large or gpt2-xl.

    python3 dev/data/gpt2.py gpt2
    ./train_gpt2 --init gpt2 --steps 0 --prompt 'In the beginning'

A folder dev/data/gpt2/NAME holds model.safetensors (0.55, 1.5, 3.2 or 6.4 GB), config.json, vocab.json and merges.txt
of the repository openai-community/NAME on huggingface.co, at a revision and with checksums that are known here.
"""
import collections
import os

import common
import download
import text

Published = collections.namedtuple("Published", "revision weights sha256 about config")

# model.safetensors: its size where it is known, its SHA-256 and about how many bytes it has. config.json: its SHA-256.
MODELS = {
    "gpt2": Published("607a30d783dfa663caf39e06633721c8d4cfcd7e", 548105171,
                      "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707", 548105171,
                      "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4"),
    "gpt2-medium": Published("6dcaa7a952f72f9298047fd5137cd6e4f05f41da", 1519984962,
                             "fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd", 1519984962,
                             "ef1a44d889ad1a0acc7731c78134f1b87d2d222f110e97dd10fd4117331caf22"),
    "gpt2-large": Published("32b71b12589c2f8d625668d2335a01cac3249519", None,
                            "5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce", 3247000000,
                            "7fccdcfd6622055342a734c663ee0b61ff4fd697f42467595df0bf4448c8c170"),
    "gpt2-xl": Published("15ea56dee5df4983c59b2538573817e1667135e2", None,
                         "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a", 6432000000,
                         "be48115d52314bc27327e160bf10197760db02ea689d10adb24db4102edf7a8a"),
}
VOCAB_JSON_BYTES = 1042301
VOCAB_JSON_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
CONFIG_BYTES = 700


def address(name, file):
    return f"{download.HUB}/openai-community/{name}/resolve/{MODELS[name].revision}/{file}"


def remotes(options, name):
    """The files of a model. The weights come last: a folder that has them has all. The four sizes have one tokenizer,
    that of the smallest."""
    model = MODELS[name]
    return [download.pinned(options, address(repository, file), file, size, sha256, about=about)
            for repository, file, size, sha256, about in (
                (name, "config.json", None, model.config, CONFIG_BYTES),
                ("gpt2", "vocab.json", VOCAB_JSON_BYTES, VOCAB_JSON_SHA256, None),
                ("gpt2", "merges.txt", text.VOCAB_BYTES, text.VOCAB_SHA256, None),
                (name, "model.safetensors", model.weights, model.sha256, model.about))]


def main():
    parser = common.parser(__doc__, "dev/data/gpt2")
    parser.add_argument("name", choices=list(MODELS), metavar="NAME", help=", ".join(MODELS))
    options = common.parse(parser)
    with common.Folder(os.path.join(options.out, options.name)) as folder:
        fetched = download.fetch(options, folder, remotes(options, options.name))
    path = common.show_path(folder.path)
    print(f"{path}: {'fetched' if fetched else 'already there'}, verified")


if __name__ == "__main__":
    common.run("gpt2.py", main)
