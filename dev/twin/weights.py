"""The parameters of a model: its table, initial values, and the files that hold them."""
import collections
import contextlib
import ctypes
import math
import os
import subprocess
import tempfile

import numpy as np

from dev import guard
from dev.sizes import models
from dev.twin import ROOT, Problem

# GPT-2's 16 tensors in file order: name in the module (Hugging Face's), shape, initialisation.
PARAMETERS = [
    ("wte.weight", ("Vp", "C"), "normal"), ("wpe.weight", ("context", "C"), "normal"),
    ("h.{}.ln_1.weight", ("C",), "one"), ("h.{}.ln_1.bias", ("C",), "zero"),
    ("h.{}.attn.c_attn.weight", ("3C", "C"), "normal"), ("h.{}.attn.c_attn.bias", ("3C",), "zero"),
    ("h.{}.attn.c_proj.weight", ("C", "C"), "residual"), ("h.{}.attn.c_proj.bias", ("C",), "zero"),
    ("h.{}.ln_2.weight", ("C",), "one"), ("h.{}.ln_2.bias", ("C",), "zero"),
    ("h.{}.mlp.c_fc.weight", ("4C", "C"), "normal"), ("h.{}.mlp.c_fc.bias", ("4C",), "zero"),
    ("h.{}.mlp.c_proj.weight", ("C", "4C"), "residual"), ("h.{}.mlp.c_proj.bias", ("C",), "zero"),
    ("ln_f.weight", ("C",), "one"), ("ln_f.bias", ("C",), "zero")]


class Config(collections.namedtuple("Config", "context V Vp L heads C")):
    """The shape of a GPT-2, as a header holds it."""
    __slots__ = ()
    table, variant, embeddings = PARAMETERS, 0, ("wte.weight",)
    name, trainer, says = "GPT-2", "train_gpt2", "0: GPT-2 (MODEL_VARIANT in gpt2.h)"
    tie = "only models with a tied head are supported"

    def dims(self):
        return {"Vp": self.Vp, "context": self.context, "C": self.C, "3C": 3 * self.C, "4C": 4 * self.C}

    @classmethod
    def of_header(cls, h):
        return cls(h[2], h[3], h[7], h[4], h[5], h[6])

    def more_of_header(self):
        return ()

    def check(self, where):
        check_numbers(self, where)
        if self.C % self.heads != 0:
            raise Problem(f"{where}: {self.C} channels cannot be divided among {self.heads} heads; choose heads that "
                          "divide channels")


def check_numbers(config, where):
    for name, value in zip(("context length", "vocabulary size", "padded vocabulary", "number of layers",
                            "number of heads", "channels", "heads of k and v", "head size", "MLP's width"), config):
        if not 1 <= value <= 1 << 20:
            raise Problem(f"{where}: {name} is {value}, expected 1 to {1 << 20}")


def pad_vocab(V):
    return (V + 127) // 128 * 128


def tensors(config):
    """(name in the module, first element, shape) of every tensor, in file order: layer after layer of each row."""
    at, known = 0, config.dims()
    for pattern, dims, *_ in config.table:
        shape = tuple(known[dim] for dim in dims)
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
    return {**parts, "wte.weight": parts["wte.weight"][:config.V]}


# ---- Initial values ----

C_SOURCE = r"""
#include "llmc/model/params.h"
void fill(float *out, const int *sizes, uint64_t seed, int64_t n) {
    ModelConfig c = {0};
    c.max_seq_len = sizes[0], c.vocab_size = sizes[1], c.padded_vocab_size = sizes[2];
    c.num_layers = sizes[3], c.num_heads = sizes[4], c.channels = sizes[5];
    model_complete(&c);
    const int64_t block = 1 << 20;
    #pragma omp parallel for
    for (int64_t i = 0; i < n; i += block) { param_init_range(out + i, &c, seed, i, min_i64(block, n - i)); }
}
"""


def c_library(source):
    """Functions of the C headers, compiled now; with threads where the compiler knows OpenMP."""
    with tempfile.TemporaryDirectory(prefix="gpt2c_twin_") as folder:
        command = [*os.environ.get("CC", "cc").split(), "-O2", "-std=gnu11", "-shared", "-fPIC", "-I", ROOT, "-x", "c",
                   "-", "-o", f"{folder}/functions.so", "-lm"]
        for more in (["-fopenmp"], []):
            with contextlib.suppress(OSError, subprocess.CalledProcessError):
                subprocess.run(command + more, input=source.encode(), check=True, capture_output=True)
                return ctypes.CDLL(f"{folder}/functions.so")
    raise Problem(f"{command[0]}: cannot compile llmc/model/params.h, which draws the initial weights; install a C "
                  "compiler, or name one in CC")


def initial(config, seed):
    """All parameters of a new model, in file order, by llmc/model/params.h itself: another library's logarithms and
    cosines differ in the last place."""
    out, shape = np.empty(num_values(config), np.float32), (ctypes.c_int * 6)(*config)
    c_library(C_SOURCE).fill(ctypes.c_void_p(out.ctypes.data), shape, ctypes.c_uint64(seed), ctypes.c_int64(len(out)))
    return out


# ---- Model files ----

MODEL_MAGIC, FP32, BF16 = 20240326, 3, 5


def file_header(*values):
    return np.array(list(values) + [0] * (256 - len(values)), np.int32).tobytes()


def model_header(config, version):
    return file_header(MODEL_MAGIC, version, config.context, config.V, config.L, config.heads, config.C, config.Vp,
                       config.variant, *config.more_of_header())


def write_model(path, config, flat):
    """A version 3 file, whole or not at all."""
    with guard.new_file(path) as file:
        file.write(model_header(config, FP32))
        file.write(flat.data)


def bin_config(path, families=(Config,)):
    """Config and version of a .bin file, after checking its exact size."""
    h = np.fromfile(path, np.int32, 256).tolist()
    if len(h) < 256 or h[0] != MODEL_MAGIC or h[1] not in (FP32, BF16):
        raise Problem(f"{path}: not a model file of version 3 (float32) or 5 (bfloat16)")
    family = next((family for family in families if family.variant == h[8]), None)
    if family is None:
        raise Problem(f"{path}: holds a model of variant {h[8]}, expected {' or '.join(f.says for f in families)}")
    config = family.of_header(h)
    config.check(path)
    expected = 1024 + num_values(config) * (4 if h[1] == FP32 else 2)
    if os.path.getsize(path) != expected:
        raise Problem(f"{path}: header asks for {expected} bytes, file has {os.path.getsize(path)} (fetch it again)")
    return config, h[1]


def widen(bits):
    """bfloat16 values, as uint16, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def read_model(path):
    """All parameters of a GPT-2's file, in file order."""
    _, version = bin_config(path)
    flat = np.fromfile(path, np.float32 if version == FP32 else np.uint16, offset=1024)
    return flat if version == FP32 else widen(flat)


def open_model(init):
    """The file and the config that --init names; the config of a size has no vocabulary yet, and no file."""
    sizes = {name: shape for name, shape in models().items() if shape.KV == 0}
    if init in sizes:
        return None, Config(sizes[init].context, 0, 0, sizes[init].L, sizes[init].heads, sizes[init].C)
    if not init.endswith(".bin"):
        raise Problem(f"--init {init}: neither a size ({' '.join(sizes)}) nor a model's .bin file")
    return init, bin_config(init)[0]
