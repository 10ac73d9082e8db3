#!/usr/bin/env python3
"""Converts models between Hugging Face's files and the .bin files of the trainers.

    python3 dev/hf.py import gpt2 gpt2.bin      OpenAI's weights from the Hub; also gpt2-medium, gpt2-large, gpt2-xl
    python3 dev/hf.py import FOLDER model.bin   a folder with model.safetensors, or with several such files
    python3 dev/hf.py export run hf             what transformers loads, from a run's newest checkpoint
    python3 dev/hf.py export model.bin hf --tokenizer gpt2_tokenizer.bin

The tokenizer of MODEL.bin lies beside it as MODEL_tokenizer.bin: import writes it there, --init MODEL.bin and export
find it. A run keeps its own. Files need numpy, names of the Hub also huggingface_hub (pip install numpy
huggingface_hub).
"""
import json
import math
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from dev import guard, hf_tokenizer  # noqa: E402
from dev.twin import Problem, version  # noqa: E402
from dev.twin.weights import (BF16, Config, FP32, bin_config, check_config, model_header, pad_vocab,  # noqa: E402
                              newest_model, tensors, widen)

NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "BOOL": np.uint8}
TRANSPOSED = re.compile(r"\.c_\w+\.weight$")  # linear weights are (in, out) in these files, (out, in) in a .bin
MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias$")  # buffers that older releases of transformers saved
MOST_HEADER, MOST_JSON = 100_000_000, 1 << 26

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
    return parse_json(guard.read_file(path, MOST_JSON), path)


def read_config(folder):
    """The model's shape, from config.json. Variants of GPT-2 that compute something else are refused."""
    path = os.path.join(folder, "config.json")
    values = read_json(path)
    if values.get("model_type", "gpt2") != "gpt2":
        raise Problem(f"{path}: model_type is {values['model_type']}, expected gpt2; other models are not supported")
    numbers = [values.get(name) for name in ("n_positions", "vocab_size", "n_layer", "n_head", "n_embd")]
    if not all(type(number) is int for number in numbers):
        raise Problem(f"{path}: n_positions, vocab_size, n_layer, n_head, n_embd are {numbers}, expected whole numbers")
    context, V, L, heads, C = numbers
    config = Config(context, V, pad_vocab(V), L, heads, C)
    check_config(config, path)
    known = {"activation_function": ("gelu_new", "gelu_pytorch_tanh"), "layer_norm_epsilon": (1e-5,),
             "n_inner": (None, 4 * C), "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
             "add_cross_attention": (False,)}
    for name, accepted in known.items():
        if values.get(name, accepted[0]) not in accepted:
            raise Problem(f"{path}: \"{name}\" is {values[name]}, a variant of GPT-2 that is not supported")
    return config


def read_safetensors(path):
    """Name -> (type, values as they lie in the file) of all tensors, which cover the file without gap or overlap."""
    with guard.open_file(path) as file:
        size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
        if length > min(MOST_HEADER, size - 8):
            raise Problem(f"{path}: not a safetensors file, or truncated: a header of {length} bytes in {size}")
        entries = parse_json(file.read(length), path)
        data = np.memmap(file, np.uint8, "r", 8 + length) if size > 8 + length else np.zeros(0, np.uint8)
    found, covered, name = {}, 0, ""
    entries.pop("__metadata__", None)
    try:
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if begin != covered or not covered <= end <= len(data) or not all(type(d) is int and d >= 0 for d in shape):
                raise ValueError
            short = name[len("transformer."):] if name.startswith("transformer.") else name
            if short in found:
                raise ValueError
            # numpy raises ValueError if the bytes do not fill the shape
            found[short], covered = (kind, data[begin:end].view(NUMPY[kind]).reshape(shape)), end
    except (KeyError, TypeError, ValueError):
        raise Problem(f"{path}: tensor {name}: its type, shape and place do not fit, or it is there twice (truncated? "
                      "fetch it again)") from None
    if covered != len(data):
        raise Problem(f"{path}: its tensors cover {covered} of {len(data)} bytes of data; fetch it again")
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


def check_finite(values, name, path):
    if not np.isfinite(values).all():
        raise Problem(f"{path}: tensor {name} holds NaN or infinity; the file is damaged or its training diverged")


def shapes_there(config):
    """Name -> shape of the model's tensors as safetensors files have them, in the order of a .bin file."""
    shapes = {name: shape[::-1] if TRANSPOSED.search(name) else shape for name, _, shape in tensors(config)}
    return {**shapes, "wte.weight": (config.V, config.C)}  # without padding


def model_tensors(config, found, path):
    """(name, values as a .bin file has them) of the model's tensors. They must all be there, and nothing else."""
    shapes = shapes_there(config)
    head = {"lm_head.weight": shapes["wte.weight"]} if "lm_head.weight" in found else {}
    for name, shape in {**shapes, **head}.items():
        kind, values = found.get(name, ("", np.zeros(0)))
        if kind not in ("F32", "F16", "BF16") or values.shape != shape:
            got = f"is {kind} of shape {list(values.shape)}" if kind else "is missing"
            raise Problem(f"{path}: tensor {name} {got}, expected F32, F16 or BF16 of shape {list(shape)}")
    others = [name for name in found if name not in shapes and name not in head and not MASK.match(name)]
    if others:
        raise Problem(f"{path}: tensor {others[0]} does not belong to a GPT-2 of {config.L} layers")
    if head and not np.array_equal(to_float32(found["lm_head.weight"][1]), to_float32(found["wte.weight"][1])):
        raise Problem(f"{path}: lm_head.weight differs from wte.weight; only models with a tied head are supported")
    for name in shapes:
        values = to_float32(found[name][1])
        check_finite(values, name, path)
        yield name, np.ascontiguousarray(values.T if TRANSPOSED.search(name) else values)


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
    parts = model_tensors(config, read_folder(folder), folder)
    if os.path.exists(tokenizer):
        tokens = hf_tokenizer.tokens_of(read_json(tokenizer), tokenizer)
        check_room(tokens, tokenizer, config)
    with guard.new_file(path) as file:
        file.write(model_header(config, FP32))
        for name, values in parts:
            file.write(values)
            if name == "wte.weight":
                file.write(bytes(4 * (config.Vp - config.V) * config.C))
    print(f"{path}: {config.L} layers, {config.heads} heads, {config.C} channels, context {config.context}, vocabulary "
          f"{config.V}; ./train_gpt2 --init {path} reads it")
    if tokens:
        hf_tokenizer.save(tokenizer_beside(path), tokens)
        print(f"{tokenizer_beside(path)}: its tokenizer of {len(tokens)} tokens")
    else:
        print(f"{folder} holds no tokenizer.json: give the model's tokenizer with --tokenizer")


def tokenizer_beside(path):
    """The tokenizer of a model's file: what lies beside it, or the copy that its run keeps."""
    kept = os.path.join(os.path.dirname(path), "tokenizer.bin")
    of_run = re.match(r"model_(\d{8}|best)\.bin", os.path.basename(path))
    return kept if of_run else path.removesuffix(".bin") + "_tokenizer.bin"


def check_room(tokens, tokenizer, config):
    if len(tokens) > config.V:
        raise Problem(f"{tokenizer}: has {len(tokens)} tokens, the model {config.V}; give the model's own")


# ---- Weights out ----


def write_safetensors(path, config, flat):
    """flat: all parameters, as they lie in a .bin file."""
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes_there(config).items():
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * math.prod(shape)]}
        at += 4 * math.prod(shape)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with guard.new_file(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, first, shape in tensors(config):
            values = to_float32(flat[first:first + math.prod(shape)]).reshape(shape)
            values = values[:config.V] if name == "wte.weight" else values
            check_finite(values, name, path)
            file.write(np.ascontiguousarray(values.T if TRANSPOSED.search(name) else values))


def export_model(source, folder, tokenizer=None):
    path = newest_model(source) if os.path.isdir(source) else source
    if path is None:
        raise Problem(f"{source}: has no checkpoint (model_*.bin); give the folder of a run, or a .bin file")
    (config, form), beside = bin_config(path), tokenizer_beside(path)
    tokens, end = [], min(50257, config.V) - 1
    if tokenizer or os.path.exists(beside):
        tokenizer = tokenizer or beside
        tokens, end = hf_tokenizer.load(tokenizer)
    check_room(tokens, tokenizer, config)
    merges = hf_tokenizer.recovered_merges(tokens) if tokens else None
    if tokens and merges is None:
        raise Problem(f"{tokenizer}: is not GPT-2's kind of tokenizer; move it away to export the model alone")
    ends = {"bos_token_id": end, "eos_token_id": end}
    files = {
        "config.json": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "gpt2c_version": version(),
                        "n_layer": config.L, "n_head": config.heads, "n_embd": config.C, "n_ctx": config.context,
                        "n_positions": config.context, "vocab_size": config.V, "activation_function": "gelu_new",
                        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
                        "resid_pdrop": 0.0, "tie_word_embeddings": True, "torch_dtype": "float32", **ends},
        "generation_config.json": {**ends, "pad_token_id": end},  # GPT-2 has no token to fill short texts with
        **(hf_tokenizer.files(tokens, merges, config.context) if tokens else {})}
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        raise Problem(f"{folder}: is not empty; give a new or an empty folder")
    for name, content in files.items():
        with guard.new_file(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)
    flat = np.memmap(path, np.uint16 if form == BF16 else np.float32, "r", 1024)
    write_safetensors(os.path.join(folder, "model.safetensors"), config, flat)  # last: a folder that has it is whole
    print(f"{folder}: {path} for Hugging Face transformers, " + (
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
        sys.exit(f"hf.py: {problem}")
    except OSError as error:
        sys.exit(f"hf.py: {error.filename or 'a file'}: {error.strerror or error}")


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="surrogateescape")
    main()
