#!/usr/bin/env python3
"""Writes dev/test/fixtures: PyTorch's numbers, which test_gpt2.c, test_gpt2.cu and others compare with.

    python3 dev/test/make_fixtures.py [--output FOLDER]

The model is that of train_gpt2.py. Needs torch, numpy and transformers.
"""
import argparse
import itertools
import math
import os
import re
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import train_gpt2  # noqa: E402, F401: first, since it says what is missing of torch and numpy

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from dev.twin import weights  # noqa: E402
from dev.twin.data import rand_u64  # noqa: E402
from dev.twin.weights import PARAMETERS  # noqa: E402
from train_gpt2 import GPT2, causal_attention, flatten, learning_rate, make_optimizer, update  # noqa: E402

# Small, odd-sized, computed in float64 from float32 weights and rounded once to float32

L, V, CONTEXT, B, T, STEPS = 2, 101, 19, 3, 13, 10
TINY = {"num_heads": 3, "C": 21, "in_bf16": False}  # no size is a multiple of a vector's width
SMALL = {"num_heads": 1, "C": 64, "in_bf16": True}  # for the GPU trainer: whole 16 bytes, weights that bf16 holds
ADAMW = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1}
SCHEDULE = {"peak": 3e-3, "warmup": 3, "total": STEPS, "final_fraction": 0.1}
GRAD_CLIP = 2.5


def config_of(model):
    V, C = model.wte.weight.shape
    return weights.Config(len(model.wpe.weight), V, weights.pad_vocab(V), len(model.h), model.h[0].num_heads, C)


def write_model(path, model, version=weights.FP32):
    values = flatten(model, model.in_file_order())
    if version == weights.BF16:
        values = values.bfloat16().view(torch.int16)
    with open(path, "wb") as file:
        file.write(weights.model_header(config_of(model), version))
        file.write(values.numpy().tobytes())


def integers(stream, limit, *shape):
    """Uniform from 0 to limit - 1."""
    numbers = rand_u64(1, stream, np.arange(math.prod(shape), dtype=np.uint64))
    return (numbers % np.uint64(limit)).astype(np.int64).reshape(shape)


def write_arrays(path, arrays):
    """Named arrays; the layout is described in dev/test/fixture.h."""
    with open(path, "wb") as file:
        file.write(np.array([20240601, 1, len(arrays)], np.int32).tobytes())
        for name, array in arrays.items():
            array = np.asarray(array)
            array = array.astype(np.int32 if array.dtype.kind == "i" else np.float32)
            shape = [array.ndim, *array.shape] + [1] * (4 - array.ndim)
            file.write(name.encode().ljust(32, b"\0") + np.array([array.dtype.kind == "i", *shape], np.int32).tobytes())
            file.write(array.tobytes())


@torch.no_grad()
def fixture_model(num_heads, C, in_bf16):
    """Every tensor far from its initialisation, so that no bias, gain or nonlinearity can be forgotten unseen."""
    model = GPT2(CONTEXT, V, L, num_heads, C)
    for i, (_, pattern, _, kind) in enumerate(PARAMETERS):
        layers = model.layers_of(pattern)
        scale, shift = {"normal": (0.35, 0), "residual": (0.25, 0), "zero": (0.3, 0.1), "one": (0.4, 0.9)}[kind]
        if in_bf16 and kind in ("normal", "residual"):
            scale *= math.sqrt(TINY["C"] / C)  # sums over more channels as large as those of the tiny model
        values = shift + scale * weights.normal(1, 1000 + i, (len(layers), *layers[0].shape))
        for parameter, value in zip(layers, torch.from_numpy(values)):
            parameter.copy_(value.bfloat16() if in_bf16 else value)
    return model


def write_steps(path, model, tokens):
    """Ten updates of a model, one batch each."""
    inputs, targets = tokens[:, :, :-1], tokens[:, :, 1:]
    rates = [learning_rate(step, **SCHEDULE) for step in range(STEPS)]
    optimizer = make_optimizer(model, **ADAMW)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(inputs[step], targets[step])
        loss.backward()
        losses.append(loss.item())
        norms.append(update(model, optimizer, rates[step], GRAD_CLIP).item())
    write_arrays(path, {
        **{name: [value] for name, value in {**ADAMW, **SCHEDULE, "grad_clip": GRAD_CLIP}.items()},
        "inputs": inputs, "targets": targets, "lr": rates, "loss": losses, "norm": norms})
    print("losses", *(f"{x:.4f}" for x in losses), "\nnorms ", *(f"{x:.4f}" for x in norms))


def write_fixture_model(folder, name, shape):
    """A model's weights, one batch with all gradients, and ten updates."""
    model = fixture_model(**shape)
    write_model(f"{folder}/{name}.bin", model)
    if name == "tiny":
        write_model(f"{folder}/{name}_bf16.bin", model, weights.BF16)
    model = model.double()
    tokens = torch.from_numpy(integers(1, V, STEPS, B, T + 1))
    inputs, targets = tokens[0, :, :-1], tokens[0, :, 1:]
    logits = model.logits(inputs)
    loss = model(inputs, targets)
    loss.backward()
    with open(f"{folder}/{name}_debug_state.bin", "wb") as file:
        file.write(weights.file_header(20240327, 2, B, T))
        file.write(inputs.int().numpy().tobytes() + targets.int().numpy().tobytes())
        file.write(logits.detach().float().numpy().tobytes() + loss.detach().float().numpy().tobytes())
        file.write(flatten(model, [p.grad for p in model.in_file_order()]).numpy().tobytes())
    if name == "tiny":
        write_hugging_face(folder + "/hf_tiny", model, inputs, logits)
    write_steps(f"{folder}/{name}_steps.bin", model, tokens)
    if name == "tiny":
        write_model(f"{folder}/{name}_after_10.bin", model)


def write_hugging_face(folder, model, inputs, logits):
    """The same model as saved by the transformers library, after checking that it computes the same logits."""
    import transformers
    transformers.utils.logging.disable_progress_bar()
    twin = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=V, n_positions=CONTEXT, n_embd=TINY["C"], n_layer=L, n_head=TINY["num_heads"],
        bos_token_id=V - 1, eos_token_id=V - 1))
    weights = {name: w.T if re.search(r"(attn|mlp)\.c_\w+\.weight", name) else w
               for name, w in model.state_dict().items()}
    twin.transformer.load_state_dict(weights)
    twin = twin.double().eval()
    with torch.no_grad():
        if not (twin(inputs).logits - logits).abs().max() < 1e-12:
            sys.exit("make_fixtures.py: transformers' GPT-2 computes other logits than train_gpt2.py's")
    twin.float().save_pretrained(folder)
    os.remove(f"{folder}/generation_config.json")
    os.chmod(f"{folder}/model.safetensors", 0o644)


def write_layers(path):
    """Each layer alone: its inputs, its output, a gradient of the output and the gradients of the inputs it causes."""
    arrays, stream = {}, itertools.count(100)

    def record(layer, function, upstream=None, **inputs):
        leaves = {name: torch.from_numpy(value).double().requires_grad_() for name, value in inputs.items()}
        out = function(**leaves)
        upstream = normal(*out.shape) if upstream is None else upstream
        out.backward(torch.from_numpy(upstream).double())
        arrays.update({f"{layer}.{name}": value for name, value in inputs.items()})
        arrays.update({f"{layer}.out": out.detach().numpy(), f"{layer}.dout": upstream})
        arrays.update({f"{layer}.d{name}": leaf.grad.numpy() for name, leaf in leaves.items()})

    def normal(*shape):
        return weights.normal(1, next(stream), shape)

    arrays["embedding.tokens"] = tokens = integers(next(stream), 11, 3, 7)
    record("embedding", lambda wte, wpe: F.embedding(torch.from_numpy(tokens), wte) + wpe[:7],
           wte=normal(11, 5), wpe=normal(9, 5))
    record("layernorm", lambda inp, weight, bias: F.layer_norm(inp, (37,), weight, bias, 1e-5),
           inp=np.float32(0.2) * normal(3, 7, 37) + np.float32(0.1), weight=normal(37), bias=normal(37))
    record("linear", lambda inp, weight, bias: F.linear(inp, weight, bias),
           inp=normal(3, 7, 37), weight=normal(53, 37), bias=normal(53))
    record("attention", lambda qkv: causal_attention(qkv, 3), qkv=normal(3, 13, 3 * 3 * 7))
    record("attention_long", lambda qkv: causal_attention(qkv, 2), qkv=2 * normal(1, 67, 3 * 2 * 3))
    record("gelu", lambda inp: F.gelu(inp, approximate="tanh"),
           inp=np.concatenate([2 * normal(57), np.array([0, 1e-4, -1e-4, 5, -5, 12, -12, 100, -100], np.float32)]))
    arrays["crossentropy.targets"] = targets = integers(next(stream), 23, 3, 7)
    record("crossentropy", lambda logits: F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten(),
                                                          reduction="none").view(3, 7),
           upstream=np.full((3, 7), 1 / 21, np.float32), logits=5 * normal(3, 7, 23))
    write_arrays(path, arrays)


def write_init(path):
    """A sample of the initial weights of the tiny model, for gpt2_init_params."""
    config = weights.Config(CONTEXT, V, weights.pad_vocab(V), L, TINY["num_heads"], TINY["C"])
    write_arrays(path, {"seed": [42], "stride": [97], "weights": weights.initial_by_numpy(config, 42)[::97]})


def main():
    parser = argparse.ArgumentParser(description="Writes the fixtures of the tests.", allow_abbrev=False)
    parser.add_argument("--output", default="dev/test/fixtures", help="folder (dev/test/fixtures)")
    output = parser.parse_args().output
    os.makedirs(output, exist_ok=True)
    shutil.rmtree(f"{output}/hf_tiny", ignore_errors=True)
    write_fixture_model(output, "tiny", TINY)
    write_fixture_model(output, "small", SMALL)
    write_layers(f"{output}/layers.bin")
    write_init(f"{output}/init.bin")
    print(f"wrote {output} with torch {torch.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
