#!/usr/bin/env python3
"""Makes dev/data/tinystories/TinyStories_train.bin (926 million tokens, 1.9 GB) and TinyStories_val.bin (19 million).

    python3 dev/data/tinystories.py

Fetches TinyStories_all_data.tar.gz (1.6 GB) of roneneldan/TinyStories from the Hub. Needs huggingface_hub. Each story,
without blanks around it, is a document. The first of 50 files is for validation, the others, in order, for training.
"""
import json
import os
import re
import tarfile
import tempfile

import common
import text
import vocab
from common import Problem

REPOSITORY, ARCHIVE = "roneneldan/TinyStories", "TinyStories_all_data.tar.gz"
TRAIN, VAL = "TinyStories_train.bin", "TinyStories_val.bin"
FILES = 50


def unpack(archive, work):
    """Writes the stories of each file of the archive as JSON lines. Returns the paths in order."""
    paths = []
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            name = os.path.basename(member.name)
            if member.isreg() and re.fullmatch(r"data\d+\.json", name):
                paths.append(os.path.join(work, name))
                common.note(f"unpacking {name}")
                with open(paths[-1], "wb") as file:
                    stories = json.load(tar.extractfile(member))
                    file.write(text.json_lines({"text": story["story"].strip()} for story in stories))
    if len(paths) != FILES:
        raise Problem(f"{ARCHIVE}: holds {len(paths)} files data*.json, expected {FILES}")
    return sorted(paths)


def main():
    options = common.parser(__doc__, "dev/data/tinystories").parse_args()
    tokenizer = vocab.find(options)
    common.open_folder(options.out, f"{REPOSITORY}, tokenizer {common.file_sha256(tokenizer)}")
    here = all(os.path.exists(os.path.join(options.out, name)) for name in (TRAIN, VAL))
    if not here:
        published = common.hub_files(REPOSITORY)[ARCHIVE]
        common.fetch_hub(REPOSITORY, {ARCHIVE: (published, ARCHIVE)}, options.out)
        with tempfile.TemporaryDirectory(prefix=".work", dir=options.out) as work:
            paths, prefix = unpack(os.path.join(options.out, ARCHIVE), work), os.path.join(work, "part")
            for part, name in ((paths[:1], VAL), (paths[1:], TRAIN)):
                common.note(f"encoding {name}")
                text.tokenize(tokenizer, prefix, ["--jsonl", "text", "--shard-size", text.MOST_TOKENS, *part])
                os.replace(prefix + "_train_000001.bin", os.path.join(options.out, name))
        os.remove(os.path.join(options.out, ARCHIVE))
    text.print_shards(options.out, [TRAIN, VAL], ", already there" if here else "")


if __name__ == "__main__":
    common.run("tinystories.py", main)
