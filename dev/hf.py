#!/usr/bin/env python3
"""Converts models between Hugging Face's files and the .bin files of the trainers.

    python3 dev/hf.py import gpt2 gpt2.bin      OpenAI's weights from the Hub; also gpt2-medium, gpt2-large, gpt2-xl
    python3 dev/hf.py import HuggingFaceTB/SmolLM2-135M smol.bin     a Llama, or a Qwen 2.5, for train_llama3
    python3 dev/hf.py import FOLDER model.bin   a folder with model.safetensors, or with several such files
    python3 dev/hf.py export run hf             what transformers loads, from a run's newest checkpoint
    python3 dev/hf.py export model.bin hf --tokenizer gpt2_tokenizer.bin

The tokenizer of MODEL.bin lies beside it as MODEL_tokenizer.bin: import writes it there, --init MODEL.bin and export
find it. A run keeps its own. Files need numpy, names of the Hub also huggingface_hub (pip install numpy
huggingface_hub). A few rows of a tensor are in memory at a time, so that a model may be larger than it.
"""
import collections
import json
import math
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from dev import guard, hf_llama, hf_tokenizer  # noqa: E402
from dev.hf_llama import Llama  # noqa: E402
from dev.twin import Problem, version  # noqa: E402
from dev.twin.weights import BF16, Config, FP32, bin_config, model_header, pad_vocab, tensors, widen  # noqa: E402

NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "BOOL": np.uint8}
BYTES = {kind: np.dtype(form).itemsize for kind, form in NUMPY.items()}
TRANSPOSED = re.compile(r"\.c_\w+\.weight$")  # GPT-2's linear weights are (in, out) there, (out, in) in a .bin
# Buffers that older releases of transformers saved.
BUFFER = re.compile(r"h\.\d+\.attn\.(masked_)?bias$|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$")
MOST_HEADER, MOST_JSON = 100_000_000, 1 << 26
PIECE = 1 << 22  # elements in memory at a time
HASH_AT, UNKNOWN = 4 * 254, bytes(8)  # the tokenizer's hash in a model's header


def say(text):
    print(guard.printable(text))


# ---- Weights in ----


def parse_json(data, path):
    """An object of JSON."""
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            return found
        raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise Problem(f"{path}: is no sound JSON ({error}); fetch it again") from None


def read_json(path):
    with open(path, "rb") as file:
        return parse_json(file.read(MOST_JSON), path)


def read_config(folder):
    """The model's shape, from config.json. Variants that compute something else are refused."""
    path = os.path.join(folder, "config.json")
    values = read_json(path)
    kind = values.get("model_type", "gpt2")
    if kind not in ("gpt2", "llama", "qwen2"):
        raise Problem(f"{path}: model_type is {kind}, expected gpt2, llama or qwen2; other models are not supported")
    return gpt2_config(values, path) if kind == "gpt2" else hf_llama.read_config(values, path)


def gpt2_config(values, path):
    numbers = [values.get(name) for name in ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd")]
    if not all(type(number) is int for number in numbers):
        raise Problem(f"{path}: n_positions, vocab_size, n_layer, n_head, n_embd are {numbers}, expected whole numbers")
    context, V, L, heads, C = numbers
    config = Config(context, V, pad_vocab(V), L, heads, C)
    config.check(path)
    known = {"activation_function": ("gelu_new", "gelu_pytorch_tanh"), "layer_norm_epsilon": (1e-5,),
             "n_inner": (None, 4 * C), "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
             "add_cross_attention": (False,)}
    for name, accepted in known.items():
        if values.get(name, accepted[0]) not in accepted:
            raise Problem(f"{path}: \"{name}\" is {values[name]}, a variant of GPT-2 that is not supported")
    return config


class Stored(collections.namedtuple("Stored", "kind shape file at")):
    """A tensor as it lies in an open file."""
    __slots__ = ()

    def pieces(self, transposed=False):
        """Its values, some rows at a time. A transposed tensor comes as a whole."""
        cols = math.prod(self.shape[1:])
        step = self.shape[0] if transposed else max(1, PIECE // max(1, cols))
        for first in range(0, self.shape[0], step):
            rows = min(step, self.shape[0] - first)
            self.file.seek(self.at + BYTES[self.kind] * first * cols)
            values = np.frombuffer(self.file.read(BYTES[self.kind] * rows * cols), NUMPY[self.kind])
            yield np.ascontiguousarray(values.reshape(rows, cols).T) if transposed else values


def read_safetensors(path):
    """Name -> Stored of all tensors, which cover the file without gap or overlap."""
    file = open(path, "rb")
    size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if length > min(MOST_HEADER, size - 8):
        raise Problem(f"{path}: not a safetensors file, or truncated: a header of {length} bytes in {size}")
    entries = parse_json(file.read(length), path)
    found, covered, name, data = {}, 0, "", size - 8 - length
    entries.pop("__metadata__", None)
    try:
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if begin != covered or not covered <= end <= data or not all(type(d) is int and d >= 0 for d in shape):
                raise ValueError
            if end - begin != BYTES[kind] * math.prod(shape):
                raise ValueError
            short = name[len("transformer."):] if name.startswith("transformer.") else name
            if short in found:
                raise ValueError
            found[short], covered = Stored(kind, tuple(shape), file, 8 + length + begin), end
    except (KeyError, TypeError, ValueError):
        raise Problem(f"{path}: tensor {name}: its type, shape and place do not fit, or it is there twice (truncated? "
                      "fetch it again)") from None
    if covered != data:
        raise Problem(f"{path}: its tensors cover {covered} of {data} bytes of data; fetch it again")
    return found


def read_folder(folder):
    """All tensors of a folder: of model.safetensors, or of the files that its index names."""
    names, found, index = {"model.safetensors"}, {}, os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        places = read_json(index).get("weight_map")
        names = {str(name) for name in places.values()} if isinstance(places, dict) else {""}
    for name in sorted(names):
        path = os.path.join(folder, os.path.basename(name))
        if not name.endswith(".safetensors") or not os.path.isfile(path):
            raise Problem(f"{path}: no such file of weights; fetch it, or save the model again with transformers "
                          "(save_pretrained)")
        part = read_safetensors(path)
        if found.keys() & part.keys():
            raise Problem(f"{path}: tensor {min(found.keys() & part.keys())} is in another file, too; fetch them again")
        found.update(part)
    return found


def to_float32(values):
    return widen(values) if values.dtype == np.uint16 else values.astype(np.float32, copy=False)


def unpadded(config):
    """(name, first element, shape) of every tensor in a .bin file, without the rows of padding."""
    for name, first, shape in tensors(config):
        yield name, first, (config.V, *shape[1:]) if name in config.embeddings else shape


def shape_there(name, shape):
    """The shape of a .bin file's tensor in a safetensors file, and the other way round."""
    return shape[::-1] if TRANSPOSED.search(name) else shape


def model_tensors(config, found, path):
    """Name -> Stored of the model's tensors, in the order of a .bin file. They must all be there, and nothing else."""
    shapes = {name: shape_there(name, shape) for name, _, shape in unpadded(config)}
    embedding, head = config.embeddings[0], "lm_head.weight"
    copy = {head: shapes[embedding]} if head in found and head not in shapes else {}
    for name, shape in {**shapes, **copy}.items():
        kind, got, *_ = found.get(name, ("", ()))
        if kind not in ("F32", "F16", "BF16") or got != shape:
            got = f"is {kind} of shape {list(got)}" if kind else "is missing"
            raise Problem(f"{path}: tensor {name} {got}, expected F32, F16 or BF16 of shape {list(shape)}")
    others = [name for name in found if name not in shapes and name not in copy and not BUFFER.match(name)]
    if others:
        raise Problem(f"{path}: tensor {others[0]} does not belong to a {config.name} of {config.L} layers")
    if copy and not all(np.array_equal(to_float32(a), to_float32(b))
                        for a, b in zip(found[head].pieces(), found[embedding].pieces())):
        raise Problem(f"{path}: {head} differs from {embedding}; {config.tie}")
    return {name: found[name] for name in shapes}


def write_pieces(file, name, stored, keeps, path):
    """Writes the values of a tensor. keeps: as they are, otherwise in float32."""
    for piece in stored.pieces(TRANSPOSED.search(name)):
        values = to_float32(piece)
        if not np.isfinite(values).all():
            raise Problem(f"{path}: tensor {name} holds NaN or infinity; the file is damaged or its training diverged")
        file.write(piece if keeps else values)


def fetch(name):
    """The folder of a model of the Hub, fetched unless it is there."""
    try:
        import huggingface_hub
    except ImportError:
        raise Problem(f"{name}: no such folder, and names of the Hub need huggingface_hub (pip install huggingface_hub)"
                      ) from None
    repository = f"openai-community/{name}" if re.fullmatch(r"gpt2(-medium|-large|-xl)?", name) else name
    try:
        return huggingface_hub.snapshot_download(repository, allow_patterns=[
            "config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer.json"])
    except Exception as error:  # of many kinds: names, networks, disks
        raise Problem(f"{name}: cannot be fetched: {(str(error) or repr(error)).splitlines()[0]}") from None


def import_model(source, path):
    folder = source if os.path.isdir(source) else fetch(source)
    config, tokenizer, tokens = read_config(folder), os.path.join(folder, "tokenizer.json"), None
    found = read_folder(folder)
    if os.path.exists(tokenizer):
        tokens = hf_tokenizer.tokens_of(read_json(tokenizer), tokenizer)
        check_room(tokens.tokens, tokenizer, config)
    with guard.new_file(path) as file:
        parts = model_tensors(config, found, folder)
        keeps = isinstance(config, Llama) and {stored.kind for stored in parts.values()} == {"BF16"}
        file.write(model_header(config, BF16 if keeps else FP32))
        for name, stored in parts.items():
            write_pieces(file, name, stored, keeps, folder)
            if name in config.embeddings:
                file.write(bytes((2 if keeps else 4) * (config.Vp - config.V) * config.C))
        if tokens:
            hf_tokenizer.save(tokenizer_beside(path), tokens)
            file.seek(HASH_AT)
            file.write(hf_tokenizer.fingerprint(tokens))
    say(f"{path}: {config.L} layers, {config.heads} heads, {config.C} channels, context {config.context}, vocabulary "
        f"{config.V}{', bf16' if keeps else ''}; ./{config.trainer} --init {path} reads it")
    if tokens:
        say(f"{tokenizer_beside(path)}: its tokenizer of {len(tokens.tokens)} tokens")
    else:
        say(f"{folder} holds no tokenizer.json: give the model's tokenizer with --tokenizer")


def tokenizer_beside(path):
    """The tokenizer of a model's file: what lies beside it, or the copy that its run keeps."""
    kept = os.path.join(os.path.dirname(path), "tokenizer.bin")
    of_run = re.match(r"model_(\d{8}|best)\.bin", os.path.basename(path))
    return kept if of_run else path.removesuffix(".bin") + "_tokenizer.bin"


def check_room(tokens, tokenizer, config):
    if len(tokens) > config.V:
        raise Problem(f"{tokenizer}: has {len(tokens)} tokens, the model {config.V}; give the model's own")


# ---- Weights out ----


def write_weights(folder, path, config, form):
    """The weights of a .bin file as model.safetensors."""
    keeps = form == BF16 and isinstance(config, Llama)
    there, here = "BF16" if keeps else "F32", "BF16" if form == BF16 else "F32"
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, _, shape in unpadded(config):
        end = at + BYTES[there] * math.prod(shape)
        entries[name] = {"dtype": there, "shape": shape_there(name, shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "rb") as source, guard.new_file(os.path.join(folder, "model.safetensors")) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, first, shape in unpadded(config):
            write_pieces(file, name, Stored(here, shape, source, 1024 + BYTES[here] * first), keeps, path)


def gpt2_json(config):
    """The values of config.json."""
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": config.L, "n_head": config.heads,
            "n_embd": config.C, "n_ctx": config.context, "n_positions": config.context, "vocab_size": config.V,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
            "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": True}


def newest_model(folder):
    """The model_<step>.bin of the highest step in a run's folder, or None."""
    names = [name for name in os.listdir(folder) if re.fullmatch(r"model_\d{8}\.bin", name)]
    return os.path.join(folder, max(names)) if names else None


def export_model(source, folder, tokenizer=None):
    path = newest_model(source) if os.path.isdir(source) else source
    if path is None:
        raise Problem(f"{source}: has no checkpoint (model_*.bin); give the folder of a run, or a .bin file")
    (config, form), beside = bin_config(path, (Config, Llama)), tokenizer_beside(path)
    is_llama = isinstance(config, Llama)
    tokens, end = None, None if is_llama else min(50257, config.V) - 1
    stop = end
    if tokenizer or os.path.exists(beside):
        tokenizer = tokenizer or beside
        tokens = hf_tokenizer.load(tokenizer)
        end, stop = tokens.end, tokens.stop()
        check_room(tokens.tokens, tokenizer, config)
    with open(path, "rb") as file:
        file.seek(HASH_AT)
        if tokens and file.read(8) not in (UNKNOWN, hf_tokenizer.fingerprint(tokens)):
            raise Problem(f"{tokenizer}: is not the tokenizer that {path} was trained with; give the model's own")
    ends = {"bos_token_id": end, "eos_token_id": stop}
    files = {
        "config.json": {**(hf_llama.config_json(config) if is_llama else gpt2_json(config)), **ends, "gpt2c_version":
                        version(), "torch_dtype": "bfloat16" if is_llama and form == BF16 else "float32"},
        "generation_config.json": {**ends, "pad_token_id": stop},  # neither has a token to fill short texts with
        **(hf_tokenizer.files(tokens, config.context) if tokens else {})}
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise Problem(f"{folder}: is not empty; give a new or an empty folder")
    for name, content in files.items():
        with guard.new_file(os.path.join(folder, name)) as file:
            file.write(json.dumps(content).encode())
    write_weights(folder, path, config, form)  # last: a folder that has them is whole
    say(f"{folder}: {path} for Hugging Face transformers, " + (
        f"with its tokenizer {tokenizer}" if tokens else "without a tokenizer (--tokenizer names one)"))


def main():
    parser = guard.Parser(__doc__, prog="hf.py")
    parser.add_argument("command", choices=("import", "export"))
    parser.add_argument("source", help="import: a name on the Hub, or a folder; export: a run's folder, or MODEL.bin")
    parser.add_argument("target", help="import: MODEL.bin; export: a new or an empty folder")
    parser.add_argument("--tokenizer", metavar="FILE", help="of an export: byte, or a file such as gpt2_tokenizer.bin; "
                        "without it, what lies beside the model")
    options = parser.parse_args()
    if options.command == "import" and options.tokenizer is not None:
        parser.error("--tokenizer: is for an export; an import takes the folder's tokenizer.json")
    try:
        if options.command == "import":
            import_model(options.source, options.target)
        else:
            export_model(options.source, options.target, options.tokenizer)
    except Problem as problem:
        parser.error(str(problem))
    except OSError as error:
        parser.error(f"{error.filename or 'a file'}: {error.strerror or error}")


if __name__ == "__main__":
    main()
