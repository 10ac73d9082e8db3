"""Independent readers of this project's file formats, and of Hugging Face's, with numpy; cli.py has the writers.
They share no code and no table with the C side: a mistake there does not repeat itself here. All functions raise
ValueError on a file that is not exactly right."""
import json
import math
import os
import struct

import numpy as np

from cli import tensor_shapes, tokenizer_bytes
from tools import ROOT, read, write

MODEL_MAGIC, TOKENS_MAGIC, WIDE_MAGIC = 20240326, 20240520, 20240801

# GPT-2's byte order, and the characters that lists of merges and Hugging Face's files show the bytes as.
VISIBLE = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
BYTES = VISIBLE + [b for b in range(256) if b not in VISIBLE]  # id -> byte
SYMBOLS = [chr(b) for b in VISIBLE] + [chr(256 + i) for i in range(256 - len(VISIBLE))]  # id -> character in the file


def pair_words():
    """Tokens for those who lack GPT-2's: token 256+i is the two bytes with the ids i // 256 and i % 256."""
    return [bytes([byte]) for byte in BYTES] + [bytes([BYTES[i // 256], BYTES[i % 256]])
                                                for i in range(50000)] + [b"<|endoftext|>"]


def pair_tokenizer():
    """A gpt2_tokenizer.bin of them, from which the merges follow."""
    return tokenizer_bytes(pair_words())


def wide_words():
    """The tokens of a Llama 3's kind that need 32 bits: those of the fixture, and special ones. The first special one
    precedes a document."""
    data, words, at = read(os.path.join(ROOT, "dev/test/fixtures/llama3_tokenizer.bin")), [], 1024
    while at < len(data):
        words.append(data[at + 1:at + 1 + data[at]])
        at += 1 + data[at]
    ranked = struct.unpack_from("<i", data, 28)[0]
    return words[:ranked] + [b"<|reserved_%d|>" % i for i in range(70000)] + words[ranked:], ranked + 70000


def wide_tokenizer():
    """Its file, of version 3."""
    words, end = wide_words()
    header = struct.pack("<256i", 20240328, 3, len(words), end, 1, 1, 0, end - 70000, *[0] * 248)
    return header + b"".join(bytes([len(word)]) + word for word in words)


def need(condition, message):
    if not condition:
        raise ValueError(message)


def parse_header(data, magic, what):
    need(len(data) >= 1024, f"{what}: shorter than its header")
    fields = struct.unpack("<256i", data[:1024])
    need(fields[0] == magic, f"{what}: magic {fields[0]}, expected {magic}")
    return fields


# Floating point: the bytes of values as numpy's floats, and back, for values that the type holds

READ = {"F32": lambda data: np.frombuffer(data, "f"), "F16": lambda data: np.frombuffer(data, "e").astype("f"),
        "BF16": lambda data: (np.frombuffer(data, "u2").astype("u4") << 16).view("f")}
WRITE = {"F32": lambda x: x.astype("f").tobytes(), "F16": lambda x: x.astype("e").tobytes(),
         "BF16": lambda x: (x.astype("f").ravel().view("u4") >> 16).astype("u2").tobytes()}


# Model weights, .bin

def read_model(path):
    """Returns (config, version, {name: floats})."""
    data = read(path)
    fields = parse_header(data, MODEL_MAGIC, "model")
    need(fields[1] in (3, 5) and not any(fields[8:254]), "model: version or unused fields")  # then the tokenizer's hash
    config = dict(zip(("maxT", "V", "L", "NH", "C", "Vp"), fields[2:8]))
    need(config["Vp"] == -(-config["V"] // 128) * 128, "model: padded vocabulary")
    tensors, at, width = {}, 1024, 4 if fields[1] == 3 else 2
    for name, shape in tensor_shapes(config).items():
        end = at + width * math.prod(shape)
        need(end <= len(data), f"model: ends within {name}")
        tensors[name] = READ["F32" if width == 4 else "BF16"](data[at:end])
        at = end
    need(at == len(data), "model: bytes to spare")
    return config, fields[1], tensors


CONFIG = {"maxT": 7, "V": 150, "L": 3, "NH": 5, "C": 15, "Vp": 256}  # of random_model


def random_model(seed):
    """Tensors with values that bfloat16 and half precision hold exactly; the padding of wte is zero."""
    generator = np.random.default_rng(seed)
    tensors = {name: (generator.integers(-128, 129, math.prod(shape)) / 32).astype("f")
               for name, shape in tensor_shapes(CONFIG).items()}
    tensors["wte"][CONFIG["V"] * CONFIG["C"]:] = 0
    return tensors


# Token shards

def read_tokens(path, wide=False):
    """wide: the ids have 32 bits. The last two fields are a hash of the tokenizer."""
    data = read(path)
    fields = parse_header(data, WIDE_MAGIC if wide else TOKENS_MAGIC, "tokens")
    need(fields[1] == (7 if wide else 1) and not any(fields[3:254]), "tokens: version or unused fields")
    need(len(data) == 1024 + (4 if wide else 2) * fields[2], f"tokens: header says {fields[2]}, size is {len(data)}")
    return np.frombuffer(data[1024:], "u4" if wide else "u2").tolist()


def tokenizer_hash(data):
    """What the header of a shard, of questions or of a model says of its tokenizer."""
    return struct.unpack("<Q", data[1016:1024])[0]


# Hugging Face

DTYPES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1}


def read_safetensors(path):
    """Returns (metadata, {name: (dtype, shape, floats or bytes)}); insists on the specification's rules."""
    data = read(path)
    need(len(data) >= 8, "safetensors: no header length")
    length = struct.unpack("<Q", data[:8])[0]
    need(length <= 100_000_000 and 8 + length <= len(data) and data[8:9] == b"{", "safetensors: header length")
    entries = json.loads(data[8:8 + length])
    metadata, body, tensors, covered = entries.pop("__metadata__", None), data[8 + length:], {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        need(begin == covered and end - begin == DTYPES[entry["dtype"]] * math.prod(entry["shape"]), name)
        covered = end
        values = READ.get(entry["dtype"], bytes)(body[begin:end])
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), values)
    need(covered == len(body), "safetensors: bytes to spare")
    return metadata, tensors


def write_safetensors(path, tensors, metadata=None, padding=0):
    """tensors: {name: (dtype, shape, floats or bytes)}."""
    entries, body = {}, b""
    if metadata is not None:
        entries["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        data = WRITE.get(dtype, bytes)(values)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(entries).encode() + b" " * padding
    write(path, struct.pack("<Q", len(text)) + text + body)


HF_NAMES = {"wte": "wte.weight", "wpe": "wpe.weight", "lnfw": "ln_f.weight", "lnfb": "ln_f.bias",
            "ln1w": "ln_1.weight", "ln1b": "ln_1.bias", "qkvw": "attn.c_attn.weight", "qkvb": "attn.c_attn.bias",
            "attprojw": "attn.c_proj.weight", "attprojb": "attn.c_proj.bias", "ln2w": "ln_2.weight",
            "ln2b": "ln_2.bias", "fcw": "mlp.c_fc.weight", "fcb": "mlp.c_fc.bias", "fcprojw": "mlp.c_proj.weight",
            "fcprojb": "mlp.c_proj.bias"}
HF_TRANSPOSED = {"qkvw", "attprojw", "fcw", "fcprojw"}


def hugging_face_tensors(config, tensors, dtype="F32", prefix=""):
    """Model tensors as Hugging Face names, cuts and transposes them."""
    out = {}
    for name, shape in tensor_shapes(config).items():
        values = tensors[name].reshape(shape)
        if name in ("wte", "wpe", "lnfw", "lnfb"):
            out[prefix + HF_NAMES[name]] = values[:config["V"]] if name == "wte" else values
            continue
        for layer, part in enumerate(values):
            out[f"{prefix}h.{layer}.{HF_NAMES[name]}"] = part.T if name in HF_TRANSPOSED else part
    return {name: (dtype, values.shape, values.ravel()) for name, values in out.items()}


# Training state

MASK = (1 << 64) - 1


def mix(x):
    """Of numbers of 64 bits."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def sum64(data):
    """SUM64 of an array of 4-byte words."""
    words = np.frombuffer(data, "u4").astype("u8")
    at = np.arange(1, 1 + len(words), dtype="u8")
    return int(mix(at * np.uint64(0x9E3779B97F4A7C15) + words).sum(dtype="u8"))


def hash64(data):
    """The SUM64 of the words, the last one filled up with zeros, and their number."""
    end = mix(np.array([MASK - len(data)], "u8"))
    return (sum64(data + bytes(-len(data) % 4)) + int(end[0])) & MASK


def read_state(path):
    """Returns ({key: text}, {section name: bytes}, {name: hash of an array in another file}); all checksums are
    verified."""
    data = read(path)
    magic, version, text_bytes, count, zero = struct.unpack_from("<8s4I", data)
    need(magic == b"GPT2STAT" and version == 4 and zero == 0, "state: magic or version")
    records_at = 24 + text_bytes
    at = records_at + 56 * count
    need(struct.unpack_from("<Q", data, at)[0] == hash64(data[:at]), "state: header checksum")
    facts = dict(line.split(" ", 1) for line in data[24:records_at].decode(errors="surrogateescape").split("\n")[:-1])
    at += 8
    sections, elsewhere = {}, {}
    for i in range(count):
        name, kind, size, checksum = struct.unpack_from("<36sIqQ", data, records_at + 56 * i)
        name = name.rstrip(b"\0").decode()
        need(kind <= 1, f"state: kind of {name}")
        if kind == 1:
            elsewhere[name] = checksum
            continue
        sections[name] = data[at:at + size]
        need(len(sections[name]) == size and hash64(sections[name]) == checksum, f"state: section {name}")
        at += size
    need(at == len(data), "state: bytes to spare")
    return facts, sections, elsewhere


def rewrite_state(path, facts=(), sections=()):
    """Changes facts (None: removes one) and sections (name -> its bytes) of a state file, as somebody would who can
    compute checksums."""
    data = read(path)
    text_bytes, count = struct.unpack_from("<2I", data, 12)
    new_facts = {**read_state(path)[0], **dict(facts)}
    text = "".join(f"{key} {value}\n" for key, value in new_facts.items() if value is not None)
    text = text.encode(errors="surrogateescape")
    at = 24 + text_bytes + 56 * count + 8
    records, bodies = b"", b""
    for i in range(count):
        name, kind, size, checksum = struct.unpack_from("<36sIqQ", data, 24 + text_bytes + 56 * i)
        size_here = 0 if kind == 1 else size
        body = dict(sections).get(name.rstrip(b"\0").decode(), data[at:at + size_here])
        at += size_here
        records += struct.pack("<36sIqQ", name, kind, size, checksum if kind == 1 else hash64(body))
        bodies += body
    head = struct.pack("<8s4I", b"GPT2STAT", 4, len(text), count, 0) + text + records
    write(path, head + struct.pack("<Q", hash64(head)) + bodies)


# Muon updates these. The second moment leaves them out, and closes the gaps.
MUON_TENSORS = ("qkvw", "attprojw", "fcw", "fcprojw")


def names_in_v(config, facts):
    """The tensors of adam_v, in order."""
    left_out = MUON_TENSORS if facts.get("--optimizer") == "muon" else ()
    return [name for name in tensor_shapes(config) if name not in left_out]


def read_checkpoint(folder, step):
    """Returns (config, {name: floats}, facts, sections) of model_<step>.bin and state_<step>.bin."""
    model = f"{folder}/model_{step:08}.bin"
    config, _, tensors = read_model(model)
    data = read(model)
    facts, sections, elsewhere = read_state(f"{folder}/state_{step:08}.bin")
    need(int(facts["step"]) == step, "checkpoint: step")
    need(int(facts["model_header"]) == hash64(data[:1024]), "checkpoint: header of the model")
    need(elsewhere == {"params": hash64(data[1024:])}, "checkpoint: parameters")
    need(list(sections)[:2] == ["adam_m", "adam_v"], "checkpoint: moments")
    size_of_v = 4 * sum(len(tensors[name]) for name in names_in_v(config, facts))
    sizes = [len(sections[name]) for name in ("adam_m", "adam_v")]
    need(sizes == [len(data) - 1024, size_of_v], "checkpoint: size of the moments")
    return config, tensors, facts, sections
