#!/usr/bin/env python3
"""Makes the token shards of FineWeb or FineWeb-Edu in dev/data/fineweb10B, fineweb100B, edu_fineweb10B or
edu_fineweb100B. Needs huggingface_hub.

    python3 dev/data/fineweb.py                          # FineWeb, 10 billion tokens (20 GB)
    python3 dev/data/fineweb.py -t edu -v 100B           # FineWeb-Edu, 100 billion tokens (200 GB)
    python3 dev/data/fineweb.py --limit 1                # one shard for training, one for validation: a trial
    python3 dev/data/fineweb.py --source parquet         # the same from the text; needs pyarrow, too
    python3 dev/data/fineweb.py --source parquet --vocab smollm2_tokenizer.bin --out data    # SmolLM2's tokens

--source shards fetches shards that others have tokenised and published. --source parquet fetches the sample of the
data set itself and encodes it on all cores: documents in the order of the files, each preceded by end-of-text. The
first shard is for validation (fineweb_val_000000.bin), the others for training (fineweb_train_000001.bin and so on).
"""
import glob
import os
import re
import tempfile

import common
import text
import vocab
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


def parse_options():
    parser = common.parser(__doc__, "dev/data/(fineweb|edu_fineweb)(10B|100B)")
    parser.add_argument("-t", "--type", choices=["classic", "edu"], default="classic", help="FineWeb or FineWeb-Edu "
                        "(default classic)")
    parser.add_argument("-v", "--version", choices=["10B", "100B"], default="10B", help="tokens (default 10B)")
    parser.add_argument("-s", "--shard_size", type=int, default=SHARD_SIZE, metavar="N",
                        help="tokens in a shard; those published have 100000000 (default)")
    parser.add_argument("--source", choices=["shards", "parquet"], default="shards", help="published shards, or the "
                        "text of the data set (default shards)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N shards for "
                        "training, and the one for validation; of parquet, the first N files of the text")
    options = parser.parse_args()
    options.prefix = PREFIX[options.type]
    if options.out == parser.get_default("out"):
        options.out = os.path.join(common.ROOT, "dev", "data", options.prefix + options.version)
    if options.shard_size < 1000 or options.limit is not None and options.limit < 1:
        parser.error(f"--shard_size {options.shard_size}, --limit {options.limit}: expected at least 1000, and 1")
    if options.source == "shards" and (options.shard_size != SHARD_SIZE or options.vocab):
        parser.error(f"{'--vocab' if options.vocab else '--shard_size'}: the published shards have {SHARD_SIZE} tokens "
                     "of GPT-2; --source parquet makes others")
    return options


def fetch_shards(options):
    """The published shards under our names: validation first, then training in order."""
    repository, theirs = SHARDS[options.type, options.version]
    found = {}
    for path, published in common.hub_files(repository).items():
        match = re.fullmatch(re.escape(theirs) + r"(_(?:val|train)_(\d{6})\.bin)", path)
        if match:
            found[match[2], path] = published, options.prefix + match[1]
    files = {path: found[number, path] for number, path in sorted(found)[:options.limit and options.limit + 1]}
    common.open_folder(options.out, f"shards of {repository}")
    return [name for _, name in files.values()], f"{common.fetch_hub(repository, files, options.out)} fetched now"


def documents(paths):
    """The texts of parquet files, in order, as blocks of JSON lines."""
    for path in paths:
        common.note(f"encoding {os.path.basename(path)}")
        with common.need("pyarrow.parquet").ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000, columns=["text"]):
                yield text.json_lines({"text": each} for each in batch.column(0).to_pylist() if each is not None)


def make_shards(options):
    """Shards from the text. Validation gets its name last: then all are there."""
    common.need("pyarrow.parquet")
    repository, folder, tokenizer = PARQUET[options.type], f"sample/{options.version}T", vocab.find(options)
    common.open_folder(options.out, f"{folder} of {repository}, limit {options.limit}, shard size {options.shard_size}"
                       f", tokenizer {common.file_sha256(tokenizer)}")
    shards = os.path.join(glob.escape(options.out), f"{options.prefix}_*_[0-9]*.bin")
    is_there = os.path.exists(os.path.join(options.out, f"{options.prefix}_val_000000.bin"))
    if not is_there:
        listed = sorted(common.hub_files(repository, folder).items())[:options.limit]
        files = {path: (published, os.path.basename(path)) for path, published in listed}
        common.fetch_hub(repository, files, options.out)
        texts = [os.path.join(options.out, name) for _, name in files.values()]
        with tempfile.TemporaryDirectory(prefix=".work", dir=options.out) as work:
            text.tokenize(tokenizer, os.path.join(work, options.prefix),
                          ["--jsonl", "text", "--shard-size", options.shard_size, "--val-tokens", options.shard_size,
                           "-"], documents(texts))
            for name in sorted(os.listdir(work)):
                if name.endswith(".bin"):
                    os.replace(os.path.join(work, name), os.path.join(options.out, name))
        for path in texts:
            os.remove(path)
    return sorted(map(os.path.basename, glob.glob(shards))), "already there" if is_there else "made now"


def main():
    options = parse_options()
    names, what = (make_shards if options.source == "parquet" else fetch_shards)(options)
    tokens = {kind: sum(text.shard_tokens(os.path.join(options.out, name)) for name in names if f"_{kind}_" in name)
              for kind in ("train", "val")}
    if 0 in tokens.values():
        raise Problem(f"{common.shown(options.out)}: no shards of both kinds; has the Hub's repository changed?")
    prefix = os.path.join(common.shown(options.out), options.prefix)
    print(f"{prefix}: {len(names)} shards, {what}; training {tokens['train']} tokens, validation {tokens['val']}")
    print(f"train with: --train-data '{prefix}_train_*.bin' --val-data '{prefix}_val_*.bin'")


if __name__ == "__main__":
    common.run("fineweb.py", main)
