#!/usr/bin/env python3
"""Makes dev/data/tinystories/TinyStories_train.bin (926 million tokens, 1.9 GB) and TinyStories_val.bin (19 million).

    python3 dev/data/tinystories.py

Fetches TinyStories_all_data.tar.gz (1.6 GB) of roneneldan/TinyStories from the Hub. The archive is read as a stream and
never unpacked; each of its 50 files goes through tokenize on all cores, in some minutes. Each story, without blanks
around it, is a document. The first file (data00.json) is for validation, the others, in order, for training. What was
fetched stays if this is stopped; the same command goes on.
"""
import json
import os
import re

import archive
import common
import download
import guard
import text
from common import Problem

REPOSITORY, ARCHIVE = "roneneldan/TinyStories", "TinyStories_all_data.tar.gz"
TRAIN, VAL = "TinyStories_train.bin", "TinyStories_val.bin"
BLOCK_CHARACTERS, STORY_CHARACTERS = 1 << 20, 16 << 20
MOST_RATIO = 32  # of the archive's files to the archive
PRODUCT_BYTES = 250  # per 100 bytes of the archive: the tokens, twice while the parts are joined


class CountedFile:
    """A file that tells a progress how much of it has been read."""

    def __init__(self, file, progress):
        self.file, self.progress = file, progress

    def read(self, size):
        block = self.file.read(size)
        self.progress.add(len(block))
        self.progress.draw()
        return block


def read_stories(name, stream):
    """The stories of a file that holds a list of objects, a piece of the file at a time."""
    decoder, buffer, at, begun = json.JSONDecoder(), "", 0, False
    stream = text.decoded(stream)
    while True:
        at = re.compile(r"[\s,\[]*" if begun else r"\s*\[?\s*").match(buffer, at).end()
        begun = begun or at > 0
        try:
            if buffer[at:at + 1] == "]":
                return
            story, end = decoder.raw_decode(buffer, at)
            yield story["story"].strip()
            at = end
        except (json.JSONDecodeError, RecursionError):
            more = stream.read(BLOCK_CHARACTERS)
            if not more or len(buffer) - at > STORY_CHARACTERS:
                raise Problem(f"{ARCHIVE}: {name}: is not a list of stories (damaged?); remove the archive and run "
                              "this again") from None
            buffer, at = buffer[at:] + more, 0
        except (KeyError, TypeError, AttributeError):
            raise Problem(f'{ARCHIVE}: {name}: expected objects with a text "story"') from None


def part_path(work, name):
    """Where the tokens of a file of the archive lie until all are there."""
    return f"{work.prefix}_{name[:-len('.json')]}_train_000001.bin"


def is_story_file(name):
    return re.fullmatch(r"data[0-9]+\.json", os.path.basename(name)) is not None


def encode_archive(folder, vocab, work):
    """Encodes all files of the archive, each into a part. Returns their names in order."""
    path = folder.join(ARCHIVE)
    size = os.path.getsize(path)
    progress, names, most = common.Progress(f"encoding {ARCHIVE}", size), [], MOST_RATIO * size + (1 << 20)
    try:
        with archive.refusing(ARCHIVE), guard.open_file(path) as file:
            for member, stream in archive.read_members(ARCHIVE, CountedFile(file, progress), "r|gz", is_story_file,
                                                       most, most):
                name = os.path.basename(member)
                progress.what = f"encoding {name}"
                names.append(name)
                text.tokenize_documents(vocab, f"{work.prefix}_{name[:-len('.json')]}", read_stories(name, stream),
                                        "--shard-size", str(text.MOST_TOKENS))
    finally:
        progress.finish()
    if len(names) < 2:
        raise Problem(f"{ARCHIVE}: holds {len(names)} files data*.json, expected 50")
    return sorted(names)


def join_parts(work, names, out):
    """Writes the tokens of several parts as one shard beside them. Returns its path."""
    path = os.path.join(work.path, out)
    tokens = sum(text.shard_tokens(part_path(work, name)) for name in names)
    if tokens > text.MOST_TOKENS:
        raise Problem(f"{out}: {tokens} tokens, a shard holds at most {text.MOST_TOKENS}")
    with guard.new_file(path, buffering=0) as file:
        file.write(text.joined_header(part_path(work, names[0]), tokens))
        for name in names:
            text.append_tokens(file, part_path(work, name))
    return path


def make(folder, vocab, made):
    download.check_disk(folder, PRODUCT_BYTES * os.path.getsize(folder.join(ARCHIVE)) // 100)
    with text.Work(folder) as work:
        names = encode_archive(folder, vocab, work)
        text.publish(folder, [text.Product(VAL, join_parts(work, names[:1], VAL)),
                              text.Product(TRAIN, join_parts(work, names[1:], TRAIN))], made)


def main():
    parser = common.parser(__doc__, "dev/data/tinystories")
    text.add_vocab(parser)
    options = common.parse(parser)
    with common.Folder(options.out) as folder:
        listed = download.hub_files(options, REPOSITORY)
        if ARCHIVE not in listed:
            raise Problem(f"{REPOSITORY}: {ARCHIVE} is not in the Hub's list of files")
        source = download.hub_remote(REPOSITORY, ARCHIVE, listed[ARCHIVE], ARCHIVE)
        vocab = text.find_vocab(options, folder)
        made = {"source": source.sha256, "vocab": common.file_sha256(vocab)}
        here = folder.is_made([TRAIN, VAL], made, options.verify)
        if not here:
            download.fetch(options, folder, [source], extra_disk=PRODUCT_BYTES * source.size // 100)
            make(folder, vocab, made)
        common.remove(folder.join(ARCHIVE))
        folder.forget(ARCHIVE)
        text.print_products(folder, [TRAIN, VAL], here)


if __name__ == "__main__":
    common.run("tinystories.py", main)
