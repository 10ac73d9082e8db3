#!/usr/bin/env python3
"""Makes a small mirror of all the hosts that dev/data fetches from, for tests and trial runs without a network.

    python3 dev/data/make_mirror.py FOLDER
    python3 dev/data/fineweb.py --mirror file://$PWD/FOLDER --out FOLDER/fineweb10B

The files lie where they lie on the hosts, the Hub's lists of files with them, and SHA256SUMS names the checksums of
those that no list describes. The contents are made up: texts of this repository, a vocabulary of pairs of bytes in
place of GPT-2's, questions about which word comes next. The parquet files need pyarrow, and are left out where it is
not installed. A small Llama is a folder for dev/hf.py import.
"""
import csv
import gzip
import hashlib
import io
import json
import math
import os
import random
import struct
import tarfile
import urllib.parse

import common
import download
import fineweb
import guard
import hellaswag
import mmlu
import text
import tinyshakespeare
import tinystories

MERGES = 50000
LLAMA_MERGES = 60
EOT = 50256
SHARD_SIZE = 20000
TRAIN_SHARDS = 3
TEXTS = ["README.md", "CONTRIBUTING.md", "dev/emu/README.md", "doc", "train_gpt2.c", "tokenize.c",
         "llmc/data/tokenizer.h"]
SCRIPTS = "Zw\u00f6lf Boxk\u00e4mpfer, \u0421\u044a\u0435\u0448\u044c, \u5929\u5730 \u2764\ufe0f \U0001f600\n"
STORIES, QUESTIONS, SUBJECTS = 12, 30, ("anatomy", "world_religions")


# ---- A vocabulary ----


def byte_order():
    """The bytes in the order of their ids, and the characters that vocab.bpe shows them as."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return visible + hidden, [chr(byte) for byte in visible] + [chr(256 + i) for i in range(len(hidden))]


def pair_vocab():
    """The text of a vocab.bpe whose merges are pairs of bytes, those of English first, and token id -> pair."""
    order, symbols = byte_order()
    common_first = [order.index(byte) for byte in b" etaoinshrdlu\n"]
    firsts = common_first + [i for i in range(256) if i not in common_first]
    pairs = [(a, b) for a in firsts for b in range(256)][:MERGES]
    return "#version: 0.2\n" + "".join(f"{symbols[a]} {symbols[b]}\n" for a, b in pairs)


# ---- Texts ----


def texts():
    """Documents: pieces of some paragraphs of files of this repository."""
    paths = []
    for name in TEXTS:
        path = os.path.join(common.ROOT, name)
        inside = sorted(os.path.join(path, entry) for entry in os.listdir(path)) if os.path.isdir(path) else [path]
        paths += [path for path in inside if path.endswith((".md", ".c", ".h"))]
    documents = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            paragraphs = file.read().split("\n\n")
        documents += ["\n\n".join(paragraphs[i:i + 8]) for i in range(0, len(paragraphs), 8)]
    documents.insert(1, SCRIPTS)
    return [document for document in documents if document.strip()]


def words_of(documents):
    return [word for document in documents for word in document.split() if word.isalpha() and len(word) > 1]


# ---- Writing ----


class Mirror:
    """Writes files as they lie on the hosts, and what is known about them."""

    def __init__(self, folder):
        self.folder, self.sums = folder, {}

    def write(self, path, data):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with guard.open_file(path, "wb") as file:
            file.write(data)

    def plain(self, url, data):
        """A file that only SHA256SUMS describes."""
        path = url.split("//")[1].split("/", 1)[1]
        self.write(path, data)
        self.sums[path] = hashlib.sha256(data).hexdigest()

    def hub(self, repository, files, folder=""):
        """A data set of the Hub: path -> content, and the list of files that its API gives for the folder."""
        entries = []
        for path, data in files.items():
            self.write(f"datasets/{repository}/resolve/main/{path}", data)
            digest = hashlib.sha256(data).hexdigest()
            lfs = {"oid": digest, "size": len(data), "pointerSize": 134}
            entries.append({"type": "file", "path": path, "size": len(data), "lfs": lfs})
        tree = f"api/datasets/{repository}/tree/main" + (f"/{folder}" if folder else "")
        self.write(tree, json.dumps(entries, indent=1).encode())

    def finish(self):
        lines = [f"{digest}  {path}\n" for path, digest in sorted(self.sums.items())]
        self.write(download.SUMS, "".join(lines).encode())


def add_shards(mirror, seed_texts):
    """Shards of the four published sets. Their tokens are bytes, so that any reader can say what is in them."""
    order, _ = byte_order()
    ids = {byte: i for i, byte in enumerate(order)}
    stream = []
    while len(stream) < (TRAIN_SHARDS + 1) * SHARD_SIZE:
        for document in seed_texts:
            stream += [EOT] + [ids[byte] for byte in document.encode()]
    for repository, prefix in fineweb.SHARDS.values():
        files = {}
        for shard in range(TRAIN_SHARDS + 1):
            tokens = stream[shard * SHARD_SIZE:(shard + 1) * SHARD_SIZE]
            if shard == TRAIN_SHARDS:
                tokens = tokens[:SHARD_SIZE // 2]  # the last one has what is left
            data = text.shard_header(len(tokens)) + b"".join(token.to_bytes(2, "little") for token in tokens)
            files[f"{prefix}_{'train' if shard else 'val'}_{shard:06d}.bin"] = data
        mirror.hub(repository, files)


def questions(rng, words, count):
    """Which word comes next? Context, four completions, label."""
    for _ in range(count):
        at = rng.randrange(len(words) - 10)
        wrong = rng.sample(sorted(set(words)), 3)
        label = rng.randrange(4)
        yield " ".join(words[at:at + 8]), wrong[:label] + [words[at + 8]] + wrong[label:], label


def add_hellaswag(mirror, rng, words):
    lines = [json.dumps({"ind": i, "ctx": context, "endings": endings, "label": label, "split": "val"}) + "\n"
             for i, (context, endings, label) in enumerate(questions(rng, words, QUESTIONS))]
    mirror.plain(hellaswag.URL, "".join(lines).encode())


def add_mmlu(mirror, rng, words):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for subject in reversed(SUBJECTS):
            for split, count in (("dev", 5), ("test", QUESTIONS)):
                rows = io.StringIO(newline="")
                for context, answers, label in questions(rng, words, count):
                    csv.writer(rows).writerow([f'"Which" word follows,\n{context}?', *answers, "ABCD"[label]])
                add_member(archive, f"data/{split}/{subject}_{split}.csv", rows.getvalue().encode())
    mirror.plain(mmlu.URL, stream.getvalue())


def add_member(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def add_tinystories(mirror, documents):
    """An archive of three files, not in order."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for number in (1, 0, 2):
            stories = [{"story": f"\n {document} \n", "source": "GPT-4", "instruction": {"words": ["a", "b"]}}
                       for document in documents[number * STORIES:(number + 1) * STORIES]]
            if number == 0:
                stories.append({"story": "half a pair: \ud83d"})
            add_member(archive, f"data{number:02d}.json", json.dumps(stories, ensure_ascii=number == 0).encode())
    mirror.hub(tinystories.REPOSITORY, {tinystories.ARCHIVE: stream.getvalue()})


def add_parquet(mirror, documents):
    """Three files in each sample of FineWeb and FineWeb-Edu. Returns whether pyarrow is here."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    contents = {}
    third = len(documents) // 3
    for number in range(3):
        stream = io.BytesIO()
        table = pyarrow.table({"text": documents[number * third:(number + 1) * third],
                               "id": [f"<urn:{number}:{i}>" for i in range(third)]})
        pyarrow.parquet.write_table(table, stream, row_group_size=20, compression="zstd")
        contents[f"{number:03d}_00000.parquet"] = stream.getvalue()
    for repository in fineweb.PARQUET.values():
        for sample in ("sample/10BT", "sample/100BT"):
            mirror.hub(repository, {f"{sample}/{name}": data for name, data in contents.items()}, sample)
    return True


def small_tokenizer():
    """A tokenizer.json of SmolLM2's kind: special tokens first, single digits apart, then bytes and pairs of them."""
    specials, merges = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), pair_vocab().split("\n")[1:LLAMA_MERGES + 1]
    vocab = [*specials, *byte_order()[1], *(merge.replace(" ", "") for merge in merges)]
    words = [{"type": "Digits", "individual_digits": True},
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
    return {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
            "added_tokens": [{"id": i, "content": token, "special": True} for i, token in enumerate(specials)],
            "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocab)}, "merges": merges}}


def add_llama(mirror, rng, repository="HuggingFaceTB/SmolLM2-135M", C=16, F=32):
    """A small model under the name of SmolLM2's, with its tokenizer: a folder for dev/hf.py import. Two heads of
    queries share one of keys and values."""
    tokenizer, layer, half = small_tokenizer(), "model.layers.0.", C // 2
    V = len(tokenizer["model"]["vocab"])
    shapes = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,), f"{layer}input_layernorm.weight": (C,),
              f"{layer}post_attention_layernorm.weight": (C,), f"{layer}self_attn.q_proj.weight": (C, C),
              f"{layer}self_attn.k_proj.weight": (half, C), f"{layer}self_attn.v_proj.weight": (half, C),
              f"{layer}self_attn.o_proj.weight": (C, C), f"{layer}mlp.gate_proj.weight": (F, C),
              f"{layer}mlp.up_proj.weight": (F, C), f"{layer}mlp.down_proj.weight": (C, F)}
    entries, data = {}, b""
    for name, shape in shapes.items():
        values = [rng.gauss(0, 0.02) if shape[1:] else 1.0 for _ in range(math.prod(shape))]
        begin, data = len(data), data + struct.pack(f"<{len(values)}f", *values)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    header = json.dumps(entries).encode()
    config = {"model_type": "llama", "max_position_embeddings": 64, "vocab_size": V, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": C, "intermediate_size": F,
              "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True}
    mirror.write(f"{repository}/config.json", json.dumps(config).encode())
    mirror.write(f"{repository}/tokenizer.json", json.dumps(tokenizer).encode())
    mirror.write(f"{repository}/model.safetensors", len(header).to_bytes(8, "little") + header + data)


def main():
    parser = guard.Parser(__doc__)
    parser.add_argument("folder", metavar="FOLDER", help="a new or empty folder")
    options = parser.parse_args()
    folder = os.path.abspath(options.folder)
    if os.path.isdir(folder) and os.listdir(folder):
        raise common.Problem(f"{options.folder}: is not empty; name a new folder")
    rng, documents = random.Random(5), texts()
    mirror = Mirror(folder)
    mirror.plain(text.VOCAB_URL, pair_vocab().encode())
    add_shards(mirror, documents)
    add_hellaswag(mirror, rng, words_of(documents))
    add_mmlu(mirror, rng, words_of(documents))
    mirror.plain(tinyshakespeare.URL, "\n\n".join(documents).encode())
    add_tinystories(mirror, documents)
    with_parquet = add_parquet(mirror, documents)
    add_llama(mirror, rng)
    mirror.finish()
    print(f"--mirror file://{urllib.parse.quote(folder)}")
    if not with_parquet:
        print("without parquet files: pyarrow is not installed")


if __name__ == "__main__":
    common.run("make_mirror.py", main)
