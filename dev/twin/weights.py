"""The parameters of a model: its table, initial values, and the files that hold them."""
import collections
import concurrent.futures
import ctypes
import functools
import glob
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np

from dev import guard
from dev.twin import guarded
from dev.twin import ROOT, Problem, header
from dev.twin.data import INIT, hash_of_words, rand_u64

# GPT-2's 16 tensors in file order: name in the files, name in the module (Hugging Face's), shape, initialisation.
PARAMETERS = [
    ("wte", "wte.weight", ("Vp", "C"), "normal"), ("wpe", "wpe.weight", ("context", "C"), "normal"),
    ("ln1w", "h.{}.ln_1.weight", ("C",), "one"), ("ln1b", "h.{}.ln_1.bias", ("C",), "zero"),
    ("qkvw", "h.{}.attn.c_attn.weight", ("3C", "C"), "normal"), ("qkvb", "h.{}.attn.c_attn.bias", ("3C",), "zero"),
    ("attprojw", "h.{}.attn.c_proj.weight", ("C", "C"), "residual"),
    ("attprojb", "h.{}.attn.c_proj.bias", ("C",), "zero"),
    ("ln2w", "h.{}.ln_2.weight", ("C",), "one"), ("ln2b", "h.{}.ln_2.bias", ("C",), "zero"),
    ("fcw", "h.{}.mlp.c_fc.weight", ("4C", "C"), "normal"), ("fcb", "h.{}.mlp.c_fc.bias", ("4C",), "zero"),
    ("fcprojw", "h.{}.mlp.c_proj.weight", ("C", "4C"), "residual"),
    ("fcprojb", "h.{}.mlp.c_proj.bias", ("C",), "zero"),
    ("lnfw", "ln_f.weight", ("C",), "one"), ("lnfb", "ln_f.bias", ("C",), "zero")]

# Llama's, in the same form. Tensors that a configuration lacks have no elements: biases, and the head of a tied model.
LLAMA = [
    ("wte", "model.embed_tokens.weight", ("Vp", "C"), "normal"),
    ("ln1w", "model.layers.{}.input_layernorm.weight", ("C",), "one"),
    ("qw", "model.layers.{}.self_attn.q_proj.weight", ("NH*HS", "C"), "normal"),
    ("kw", "model.layers.{}.self_attn.k_proj.weight", ("KV*HS", "C"), "normal"),
    ("vw", "model.layers.{}.self_attn.v_proj.weight", ("KV*HS", "C"), "normal"),
    ("qb", "model.layers.{}.self_attn.q_proj.bias", ("q biases",), "zero"),
    ("kb", "model.layers.{}.self_attn.k_proj.bias", ("kv biases",), "zero"),
    ("vb", "model.layers.{}.self_attn.v_proj.bias", ("kv biases",), "zero"),
    ("attprojw", "model.layers.{}.self_attn.o_proj.weight", ("C", "NH*HS"), "residual"),
    ("ln2w", "model.layers.{}.post_attention_layernorm.weight", ("C",), "one"),
    ("gatew", "model.layers.{}.mlp.gate_proj.weight", ("F", "C"), "normal"),
    ("upw", "model.layers.{}.mlp.up_proj.weight", ("F", "C"), "normal"),
    ("fcprojw", "model.layers.{}.mlp.down_proj.weight", ("C", "F"), "residual"),
    ("lnfw", "model.norm.weight", ("C",), "one"), ("headw", "lm_head.weight", ("head", "C"), "normal")]


class Config(collections.namedtuple("Config", "context V Vp L heads C")):
    """The shape of a GPT-2, as a header holds it."""
    __slots__ = ()
    table, variant, embeddings = PARAMETERS, 0, ("wte.weight",)
    name, trainer, says = "GPT-2", "train_gpt2", "0: GPT-2 (MODEL_VARIANT in gpt2.h)"
    tie = "only models with a tied head are supported"

    def dims(self):
        return {"Vp": self.Vp, "context": self.context, "C": self.C, "3C": 3 * self.C, "4C": 4 * self.C}


class Llama(collections.namedtuple("Llama", "context V Vp L heads C kv_heads head_size width tied qkv_bias epsilon "
                                   "theta factor low high rope_context")):
    """The shape of a Llama. A header holds epsilon, theta, factor, low and high as float32."""
    __slots__ = ()
    table, variant, embeddings = LLAMA, 3, ("model.embed_tokens.weight", "lm_head.weight")
    name, trainer, says = "Llama", "train_llama3", "3: Llama"
    tie = "config.json says that they are tied (tie_word_embeddings)"

    def dims(self):
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return {"Vp": self.Vp, "C": self.C, "F": self.width, "NH*HS": q, "KV*HS": kv, "q biases": q * self.qkv_bias,
                "kv biases": kv * self.qkv_bias, "head": self.Vp * (1 - self.tied)}


def pad_vocab(V):
    return (V + 127) // 128 * 128


@functools.lru_cache(None)
def sizes():
    """The names that --init knows for a new model: layers, heads, channels, context."""
    rows = re.findall(r'X\("([\w:]+)", (?:"(\w+)", )?(\d+), (\d+), (\d+), (\d+)\)', header("model/gpt2.h"))
    return {name: tuple(map(int, numbers)) for *names, a, b, c, d in rows for name in names if name
            for numbers in [(a, b, c, d)]}


def shape_of(config, dims):
    known = config.dims()
    return tuple(known[dim] for dim in dims)


def tensors(config):
    """(name in the module, first element, shape) of every tensor, in file order: layer after layer of each row."""
    at = 0
    for _, pattern, dims, _ in config.table:
        shape = shape_of(config, dims)
        for layer in range((config.L if "{}" in pattern else 1) * (math.prod(shape) > 0)):
            yield pattern.format(layer), at, shape
            at += math.prod(shape)


def num_values(config):
    """All elements, the padding of wte included."""
    return sum(math.prod(shape) for _, _, shape in tensors(config))


def num_parameters(config):
    return num_values(config) - (config.Vp - config.V) * config.C


def parts_of(flat, config):
    """Name in the module -> its values in an array of all parameters, wte without its padding."""
    parts = {name: flat[at:at + math.prod(shape)].reshape(shape) for name, at, shape in tensors(config)}
    parts["wte.weight"] = parts["wte.weight"][:config.V]
    return parts


def check_config(config, where):
    for name, value in zip(("context length", "vocabulary size", "padded vocabulary", "number of layers",
                            "number of heads", "channels", "heads of k and v", "head size", "MLP's width"), config):
        if not 1 <= value <= 1 << 20:
            raise Problem(f"{where}: {name} is {value}, expected 1 to {1 << 20}")
    if isinstance(config, Llama):
        check_llama(config, where)
    elif config.C % config.heads != 0:
        raise Problem(f"{where}: {config.C} channels cannot be divided among {config.heads} heads; choose heads that "
                      "divide channels")


def check_llama(c, where):
    if c.heads % c.kv_heads != 0 or c.head_size % 2 != 0:
        raise Problem(f"{where}: {c.heads} heads read {c.kv_heads} heads of k and v, of {c.head_size} components; "
                      "expected a divisor of the heads, and an even number of components")
    scaled = 0 < c.low < c.high and c.factor > 0 and c.rope_context > 0
    plain = (c.factor, c.low, c.high, c.rope_context) == (1, 1, 1, 0)
    if not (scaled or plain) or not (c.epsilon > 0 and c.theta > 0 and all(map(math.isfinite, c[11:]))):
        raise Problem(f"{where}: epsilon is {c.epsilon}, theta {c.theta}, scaling by {c.factor} between {c.low} and "
                      f"{c.high} for a context of {c.rope_context}: these numbers do not fit")
    if {c.tied, c.qkv_bias} - {0, 1}:
        raise Problem(f"{where}: the marks of a tied head and of biases are {c.tied} and {c.qkv_bias}, expected 0 or 1")


# ---- Initial values ----


def normal_pairs(seed, stream, first, count):
    """Standard normal float32 numbers 2 * first .. 2 * (first + count) - 1 of a stream, from the definition in
    llmc/base/rand.h. Logarithm and cosine are numpy's; C's may differ in the last places."""
    bits, f32 = rand_u64(seed, stream, np.arange(first, first + count, dtype=np.uint64)), np.float32
    u = ((bits >> np.uint64(40)).astype(f32) + f32(0.5)) * f32(2.0**-24)
    angle = ((bits >> np.uint64(16)) & np.uint64(0xffffff)).astype(f32) * f32(2 * math.pi / 2**24)
    radius = np.sqrt(f32(-2) * np.log(u))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()


def normal(seed, stream, shape):
    """The first numbers of a stream."""
    count = math.prod(shape)
    return normal_pairs(seed, stream, 0, (count + 1) // 2)[:count].reshape(shape)


def scale_of(kind, L):
    """The standard deviation of a row of PARAMETERS that is drawn at random."""
    return np.float32(0.02) / np.sqrt(np.float32(2 * L if kind == "residual" else 1))


def initial_by_numpy(config, seed):
    """The initial values from their definition."""
    out, at = [], 0
    for i, (_, pattern, dims, kind) in enumerate(PARAMETERS):
        shape = (config.L if "{}" in pattern else 1, *shape_of(config, dims))
        if kind in ("zero", "one"):
            out.append(np.full(math.prod(shape), float(kind == "one"), np.float32))
        else:
            out.append(scale_of(kind, config.L) * normal(seed, INIT + i, (math.prod(shape),)))
        if at == 0:
            out[0][config.V * config.C:] = 0  # padding
        at += math.prod(shape)
    return np.concatenate(out)


C_SOURCE = r"""
#include "llmc/model/params.h"
void fill(float *out, const int *sizes, uint64_t seed, int64_t first, int64_t n) {
    ModelConfig c = {0};
    c.max_seq_len = sizes[0], c.vocab_size = sizes[1], c.padded_vocab_size = sizes[2];
    c.num_layers = sizes[3], c.num_heads = sizes[4], c.channels = sizes[5];
    model_complete(&c);
    param_init_range(out, &c, seed, first, n);
}
"""


@functools.lru_cache(None)
def c_library(source=C_SOURCE):
    """Functions of the C headers, compiled now; None where there is no C compiler."""
    compiler = os.environ.get("CC", "cc").split()
    with tempfile.TemporaryDirectory(prefix="gpt2c_twin_") as folder:
        command = [*compiler, "-O2", "-std=gnu11", "-shared", "-fPIC", "-I", ROOT, "-x", "c", "-", "-o",
                   f"{folder}/functions.so", "-lm"]
        try:
            subprocess.run(command, input=source.encode(), check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return ctypes.CDLL(f"{folder}/functions.so")


def initial_by_c(config, seed):
    """The same from llmc/model/params.h itself, to the bit: the C library's logf and cosf round unlike numpy's. None
    where there is no C compiler."""
    library, n, block = c_library(), num_values(config), 1 << 22
    if library is None:
        return None
    out = np.empty(n, np.float32)
    fill = library.fill
    fill.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64]
    fill.restype = None
    shape = (ctypes.c_int * 6)(*config)

    def part(first):
        fill(out[first:].ctypes.data, ctypes.addressof(shape), seed, first, min(block, n - first))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(part, range(0, n, block)))
    return out


def initial(config, seed):
    """All parameters of a new model, in file order."""
    values = initial_by_c(config, seed)
    if values is None:
        print("no C compiler: the initial weights are numpy's, which differ from the C trainers' in the last place")
        values = initial_by_numpy(config, seed)
    return values


# ---- Model files ----

MODEL_MAGIC, FP32, BF16 = 20240326, 3, 5


def file_header(*values):
    return np.array(list(values) + [0] * (256 - len(values)), np.int32).tobytes()


def model_header(config, version):
    more = [int(np.float32(x).view(np.int32)) if isinstance(x, float) else x for x in config[6:]]
    return file_header(MODEL_MAGIC, version, config.context, config.V, config.L, config.heads, config.C, config.Vp,
                       config.variant, *more)


def write_model(path, config, flat):
    """A version 3 file, whole or not at all."""
    try:
        with guarded.new_file(path) as file:
            file.write(model_header(config, FP32))
            flat.tofile(file)
    except OSError as error:
        raise Problem(f"{path}: cannot be written: {error.strerror or error}; free some space") from None


def bin_config(path, families=(Config,)):
    """Config and version of a .bin file, after checking its exact size."""
    with guarded.open_file(path) as file:
        h = np.fromfile(file, np.int32, 256).tolist()
    if len(h) < 256 or h[0] != MODEL_MAGIC or h[1] not in (FP32, BF16):
        raise Problem(f"{path}: not a model file of version 3 (float32) or 5 (bfloat16)")
    family = next((family for family in families if family.variant == h[8]), None)
    if family is None:
        raise Problem(f"{path}: holds a model of variant {h[8]}, expected {' or '.join(f.says for f in families)}")
    more = [*h[9:14], *np.array(h[14:19], np.int32).view(np.float32).tolist(), h[19]] if family is Llama else []
    config = family(h[2], h[3], h[7], h[4], h[5], h[6], *more)
    check_config(config, path)
    expected = 1024 + num_values(config) * (4 if h[1] == FP32 else 2)
    if os.path.getsize(path) != expected:
        raise Problem(f"{path}: header asks for {expected} bytes, file has {os.path.getsize(path)} (fetch it again)")
    return config, h[1]


def widen(bits):
    """bfloat16 values, as uint16, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def read_bin(path):
    config, version = bin_config(path)
    flat = np.fromfile(path, np.float32 if version == FP32 else np.uint16, offset=1024)
    flat = flat if version == FP32 else widen(flat)
    flat[config.V * config.C:config.Vp * config.C] = 0
    return flat


def step_of(name):
    return int(re.search(r"_(\d{8})\.\w+$", name).group(1))


def by_step(folder, kind):
    """The files of a kind, such as model_*.bin, the highest step first."""
    names = glob.glob(os.path.join(glob.escape(folder), kind.replace("*", "[0-9]" * 8)))
    return sorted(names, key=step_of, reverse=True)


def is_whole(path):
    """Whether a run's model is the one that its training state expects. A model without a state is taken as it is."""
    state = os.path.join(os.path.dirname(path), os.path.basename(path).replace("model_", "state_"))
    if not os.path.exists(state):
        return True
    try:
        bin_config(path, (Config, Llama))
        with guarded.open_file(state) as file:
            head = file.read(1 << 20)
        expected, = struct.unpack_from("<Q", head, 24 + struct.unpack_from("<I", head, 12)[0] + 48)  # the first record
    except (Problem, OSError, struct.error):
        return False
    return hash_of_words(np.memmap(path, np.uint32, "r", 1024)) == expected


def newest_model(folder):
    """The newest model_<step>.bin of a run's folder that is whole, or None."""
    for path in by_step(folder, "model_*.bin"):
        if is_whole(path):
            return path
        print(guard.printable(f"passed over: {path}: is damaged"), file=sys.stderr)
    return None


def open_model(init):
    """The file and the config that --init names; the config of a size has no vocabulary yet, and no file."""
    if init in sizes():
        L, heads, C, context = sizes()[init]
        return None, Config(context, 0, 0, L, heads, C)
    path = init
    if os.path.isdir(init):
        path = newest_model(init)
        if path is None:
            raise Problem(f"--init {init}: this folder holds no model_<step>.bin; dev/hf.py import converts a model of "
                          "Hugging Face")
    if not os.path.exists(path) or not path.endswith(".bin"):
        raise Problem(f"--init {init}: neither a size ({' '.join(sizes())}) nor a model's .bin file nor the folder of "
                      "a run")
    return path, bin_config(path)[0]


def read_model(path):
    """All parameters of a model file, in file order."""
    flat = read_bin(path)
    if not np.isfinite(flat).all():
        raise Problem(f"{path}: holds values that are not numbers; the file is damaged or its training diverged")
    return flat
