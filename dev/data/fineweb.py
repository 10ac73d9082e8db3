#!/usr/bin/env python3
"""Makes the token shards of FineWeb or FineWeb-Edu in dev/data/fineweb10B, fineweb100B, edu_fineweb10B or
edu_fineweb100B.

    python3 dev/data/fineweb.py                          # FineWeb, 10 billion tokens (20 GB)
    python3 dev/data/fineweb.py -t edu -v 100B           # FineWeb-Edu, 100 billion tokens (200 GB)
    python3 dev/data/fineweb.py --limit 1                # one shard for training, one for validation: a trial
    python3 dev/data/fineweb.py --source parquet         # the same from the text; needs pyarrow
    python3 dev/data/fineweb.py --source parquet --vocab smollm2_tokenizer.bin --out data    # SmolLM2's tokens

--source shards fetches shards that others have tokenised and published on the Hub. --source parquet fetches the sample
of the data set itself and then encodes it with tokenize on all cores: documents in the order of the files, each
preceded by end-of-text. The first shard is for validation (fineweb_val_000000.bin), the others for training
(fineweb_train_000001.bin and so on). What was fetched stays where either is stopped.
"""
import glob
import hashlib
import os
import re

import common
import download
import text
from common import Problem

# type, version -> where its shards are published, and how they are called there
SHARDS = {
    ("classic", "10B"): ("kjj0/fineweb10B-gpt2", "fineweb"),
    ("classic", "100B"): ("kjj0/fineweb100B-gpt2", "fineweb"),
    ("edu", "10B"): ("kjj0/finewebedu10B-gpt2", "finewebedu"),
    ("edu", "100B"): ("karpathy/fineweb-edu-100B-gpt2-token-shards", "edu_fineweb"),
}
PARQUET = {"classic": "HuggingFaceFW/fineweb", "edu": "HuggingFaceFW/fineweb-edu"}
PREFIX = {"classic": "fineweb", "edu": "edu_fineweb"}
SHARD_SIZE = 100000000
TOKEN_BYTES = 75  # of shards, per 100 bytes of parquet: 20.7 GB from 30.6 GB of FineWeb's sample, and some more


def parse_options():
    parser = common.parser(__doc__, "dev/data/(fineweb|edu_fineweb)(10B|100B)", jobs=True)
    parser.add_argument("-t", "--type", choices=["classic", "edu"], default="classic", help="FineWeb or FineWeb-Edu "
                        "(default classic)")
    parser.add_argument("-v", "--version", choices=["10B", "100B"], default="10B", help="tokens (default 10B)")
    parser.add_argument("-m", "--model_desc", choices=["gpt-2"], default="gpt-2", help="whose tokens (default gpt-2)")
    parser.add_argument("-s", "--shard_size", type=common.whole(1000, 2**31 - 1), default=SHARD_SIZE, metavar="N",
                        help="tokens in a shard; those published have 100000000 (default)")
    parser.add_argument("--source", choices=["shards", "parquet"], default="shards", help="published shards, or the "
                        "text of the data set (default shards)")
    parser.add_argument("--limit", type=common.whole(1, 100000), metavar="N", help="only the first N shards for "
                        "training, and the one for validation; of parquet, the first N files of the text")
    text.add_vocab(parser)
    options = common.parse(parser)
    options.prefix = PREFIX[options.type]
    if options.out == options.default_out:
        options.out = os.path.join(common.ROOT, "dev", "data", options.prefix + options.version)
    if options.source == "shards" and options.shard_size != SHARD_SIZE:
        parser.error(f"--shard_size {options.shard_size}: the published shards have {SHARD_SIZE} tokens; --source "
                     "parquet makes others")
    if options.source == "shards" and options.vocab:
        parser.error("--vocab: only --source parquet needs it")
    return options


def shard_remotes(options, folder):
    """The published shards as files to fetch: validation first, then training in order."""
    repository, theirs = SHARDS[options.type, options.version]
    remotes, last = [], 0
    for path, entry in download.hub_files(options, repository).items():
        found = re.fullmatch(re.escape(theirs) + r"_(val|train)_(\d{6})\.bin", path)
        if found:
            name = f"{options.prefix}_{found.group(1)}_{found.group(2)}.bin"
            remotes.append(download.hub_remote(repository, path, entry, name))
    remotes.sort(key=lambda remote: remote.name[-10:])  # shard 0 is validation
    training = [remote for remote in remotes if "_train_" in remote.name]
    if not training or len(training) == len(remotes):
        raise Problem(f"{repository}: no shards {theirs}_val_*.bin and {theirs}_train_*.bin in the Hub's list of files")
    last = training[:options.limit][-1].name[-10:]
    return [remote for remote in remotes if remote.name[-10:] <= last]


def fetch_shards(options, folder):
    folder.set_source({"source": "shards", "repository": SHARDS[options.type, options.version][0]})
    remotes = shard_remotes(options, folder)
    fetched = download.fetch(options, folder, remotes, hint=", or take fewer with --limit")
    tokens = {kind: sum(text.shard_tokens(folder.join(remote.name)) for remote in remotes if f"_{kind}_" in remote.name)
              for kind in ("train", "val")}
    print(f"{common.show_path(folder.path)}: {len(remotes)} shards, {fetched} fetched now; training {tokens['train']} "
          f"tokens, validation {tokens['val']}")


# ---- From the text ----


def import_pyarrow():
    """The module, or how to get it."""
    try:
        import pyarrow.parquet
        return pyarrow
    except ImportError:
        raise Problem("--source parquet reads parquet files with pyarrow, which is not installed here: "
                      "python3 -m pip install pyarrow; or take --source shards, which needs nothing") from None


def parquet_remotes(options, repository):
    folder = f"sample/{options.version}T"
    entries = download.hub_files(options, repository, folder)
    remotes = [download.hub_remote(repository, path, entry, os.path.basename(path))
               for path, entry in entries.items() if path.endswith(".parquet")]
    if not remotes:
        raise Problem(f"{repository}: no parquet files in {folder} of the Hub's list of files")
    return remotes


def documents(paths):
    """The texts of parquet files, in order."""
    progress, pyarrow = common.Progress("", 0), import_pyarrow()
    try:
        for path in paths:
            progress.what = f"encoding {os.path.basename(path)}"
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1000, columns=["text"]):
                    texts = [document for document in batch.column(0).to_pylist() if document is not None]
                    yield from texts
                    progress.add(sum(map(len, texts)))
                    progress.draw()
    except (pyarrow.ArrowException, OSError, IndexError) as error:  # IndexError: it has no column text
        reason = (str(error) or repr(error)).splitlines()[0]
        raise Problem(f"{common.show_path(path)}: {reason}; remove the file and run this again") from None
    finally:
        progress.finish()


def encode_parquet(options, folder, vocab, remotes, made):
    download.fetch(options, folder, remotes, TOKEN_BYTES * sum(remote.size for remote in remotes) // 100)
    size = str(options.shard_size)
    with text.Work(folder) as work:
        text.tokenize_documents(vocab, work.prefix, documents([folder.join(remote.name) for remote in remotes]),
                                "--shard-size", size, "--val-tokens", size)
        parts = sorted(glob.glob(glob.escape(work.prefix) + "_*.bin"))  # validation comes last: then all are recorded
        text.publish(folder, [text.Product(options.prefix + path[len(work.prefix):], path) for path in parts], made)
    for remote in remotes:
        common.remove(folder.join(remote.name))
    folder.forget(*(remote.name for remote in remotes))


def make_shards(options, folder):
    import_pyarrow()
    repository, vocab = PARQUET[options.type], text.find_vocab(options, folder)
    source = {"source": "parquet", "repository": repository, "version": options.version,
              "shard_size": options.shard_size, "vocab": common.file_sha256(vocab)}
    source.update({"limit": options.limit} if options.limit else {})
    folder.set_source(source)
    remotes = parquet_remotes(options, repository)[:options.limit]
    # One short word for each shard's record, of all that the shards follow from.
    made = hashlib.sha256(repr([source, [remote.sha256 for remote in remotes]]).encode()).hexdigest()

    def names():
        return [name for name, entry in folder.record.get("files", {}).items() if entry.get("made") == made]

    here = f"{options.prefix}_val_000000.bin" in names() and folder.is_made(names(), made, options.verify)
    if not here:
        encode_parquet(options, folder, vocab, remotes, made)
    tokens = sum(text.shard_tokens(folder.join(name)) for name in names())
    print(f"{common.show_path(folder.path)}: {len(names())} shards{', already there' if here else ''}; training "
          f"{tokens - options.shard_size} tokens, validation {options.shard_size}")


def main():
    options = parse_options()
    with common.Folder(options.out) as folder:
        (make_shards if options.source == "parquet" else fetch_shards)(options, folder)
    print(f"train with: --train-data '{common.show_path(options.out)}/{options.prefix}_train_*.bin' "
          f"--val-data '{common.show_path(options.out)}/{options.prefix}_val_*.bin'")


if __name__ == "__main__":
    common.run("fineweb.py", main)
