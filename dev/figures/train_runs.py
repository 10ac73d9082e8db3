#!/usr/bin/env python3
"""Trains the small models whose losses the figures of doc/ show, and writes dev/figures/runs.json: ten minutes.

    python3 dev/data/tinyshakespeare.py
    python3 dev/figures/train_runs.py dev/data/tinyshakespeare/tiny_shakespeare.txt

Needs train_gpt2 in the root. Runs with a wrong backward compile train_gpt2.c with one mistake at a time.
"""
import collections
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap

import numpy

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TRAINER = os.path.join(ROOT, "train_gpt2")
EVALUATE = "--threads 1 --sample-every 0 --val-sequences 128".split()
ALL = [*EVALUATE, *"--seq-len 64 --batch-size 8 --shuffle --log-every 1000".split()]
SMALL = [*ALL, *"--layers 4 --heads 4 --channels 64 --steps 600 --val-every 20".split()]
TINY = [*ALL, *"--layers 2 --heads 2 --channels 32 --steps 200 --val-every 10 --checkpoint-every 10".split()]
MISTAKES = {  # what to replace in train_gpt2.c, and what stands there then
    "right": [],
    "no_mean_g": [("weight[c] * dy[c] - mean_g -", "weight[c] * dy[c] -")],
    "no_mean_gn": [(" - mean_g - n * mean_gn", " - mean_g")],
    "no_gelu_term": [(" + half * x * (one - th * th) * du", " + half * (du - du)")],
    "no_embedding": [("model->tokens, outside.wte, outside.wpe, B", "(int32_t[512]){0}, outside.wte, outside.wpe, B")],
    "no_attention": [(" matmul_forward(a.residual_mid", " clear_rows(a.att, N * C), matmul_forward(a.residual_mid"),
                     (" clear_rows(a.dqkv,", " clear_rows(a.datt, N * C), clear_rows(a.dqkv,")]}
OPTIMIZERS = {"AdamW": "--lr 4e-3".split(),  # each with its best rate of 1e-3, 2e-3 ... 3.2e-2 and 0.01 ... 0.08
              "Muon": "--optimizer muon --lr 4e-3 --muon-lr 0.02 --muon-warmup 20".split()}
COLUMNS, ROWS, MARGIN = 25, 19, 0.15  # of the grid on the plane; MARGIN beside the paths, as a part of their extent


def validation_losses(text, folder, *options, trainer=TRAINER):
    command = [trainer, "--train-data", text, "--out-dir", folder, "--overwrite", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "main.log"), encoding="utf-8") as file:
        return [round(float(loss), 3) for loss in re.findall(r"^s:\d+ tel:(\S+)", file.read(), re.M)]


def mean_of_seeds(text, folder, trainer):
    runs = [validation_losses(text, folder, *SMALL, "--lr", "3e-3", "--seed", seed, trainer=trainer) for seed in "123"]
    return [round(sum(losses) / len(runs), 3) for losses in zip(*runs)]


def with_mistake(replaced, folder, file="train_gpt2.c"):
    """Compiles the trainer with texts replaced in one of its files, a copy in the folder."""
    sources = {}
    for name in {"train_gpt2.c", file}:
        with open(os.path.join(ROOT, name), encoding="utf-8") as source:
            sources[name] = source.read()
    for old, new in replaced:
        assert old in sources[file], old
        sources[file] = sources[file].replace(old, new)
    for name, source in sources.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as copy:
            copy.write(source)
    program = os.path.join(folder, "wrong")
    flags = "-std=gnu11 -O3 -march=native -ffp-contract=fast -fno-math-errno -fopenmp".split()
    command = ["gcc", *flags, "-I", folder, "-I", ROOT, "-o", program, os.path.join(folder, "train_gpt2.c"), "-lm"]
    subprocess.run(command, check=True)
    return program


def guesses(text):
    """The losses of three guesses: all bytes alike, by how often a byte occurs, by the byte before."""
    with open(text, "rb") as file:
        data = file.read()
    ones, pairs = collections.Counter(data), collections.Counter(zip(data, data[1:]))
    of_ones = -sum(n * math.log(n / len(data)) for n in ones.values()) / len(data)
    of_pairs = -sum(n * math.log(n / ones[first]) for (first, _), n in pairs.items()) / (len(data) - 1)
    return {"alike": round(math.log(257), 3), "counts": round(of_ones, 3), "pairs": round(of_pairs, 3)}


def loss_at(text, header, weights, path):
    with open(path, "wb") as file:
        file.write(header + weights.astype(numpy.float32).tobytes())
    command = [TRAINER, "--train-data", text, "--init", path, *EVALUATE, *"--steps 0 --json -".split()]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return round(json.loads(said.splitlines()[0])["loss"], 2)


def plane(text, folder):
    """The plane through the first weights, AdamW's last and Muon's last: both paths on it, and the loss of a grid."""
    def model(name, step):
        with open(os.path.join(folder, name, f"model_{step:08}.bin"), "rb") as file:
            return file.read(1024), numpy.frombuffer(file.read(), dtype=numpy.float32).astype(float)
    curves = {name: validation_losses(text, os.path.join(folder, name), *TINY, *options)
              for name, options in OPTIMIZERS.items()}
    validation_losses(text, os.path.join(folder, "begin"), *TINY, "--steps", "1", "--lr", "0")
    header, first = model("begin", 1)
    across, up = (model(name, 200)[1] - first for name in OPTIMIZERS)
    across /= numpy.linalg.norm(across)
    up -= up @ across * across
    axes = numpy.array([across, up / numpy.linalg.norm(up)])
    paths = {name: [axes @ (w - first) for w in (first, *(model(name, 10 * i)[1] for i in range(1, 21)))]
             for name in OPTIMIZERS}
    low, high = numpy.min(sum(paths.values(), []), axis=0), numpy.max(sum(paths.values(), []), axis=0)
    margin = MARGIN * (high - low).max()
    xs, ys = (numpy.linspace(low[i] - margin, high[i] + margin, n) for i, n in ((0, COLUMNS), (1, ROWS)))
    grid = [[loss_at(text, header, first + (x, y) @ axes, os.path.join(folder, "at.bin")) for x in xs] for y in ys]
    return {"losses": curves, "grid": grid, "xs": xs.round(2).tolist(), "ys": ys.round(2).tolist(),
            "paths": {name: numpy.round(path, 2).tolist() for name, path in paths.items()}}


def main():
    if len(sys.argv) != 2 or not os.path.isfile(sys.argv[1]):
        raise SystemExit("train_runs.py: expected one text file, such as tiny_shakespeare.txt")
    text = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        data = {"guesses": guesses(text), "plane": plane(text, folder),
                "rates": {rate: validation_losses(text, run, *SMALL, "--lr", rate)
                          for rate in ("1e-4", "1e-3", "3e-3", "3e-2")},
                "mistakes": {name: mean_of_seeds(text, run, with_mistake(replaced, folder))
                             for name, replaced in MISTAKES.items()}}
    with open(os.path.join(ROOT, "dev", "figures", "runs.json"), "w", encoding="utf-8") as file:
        file.write(textwrap.fill(json.dumps(data), 118) + "\n")


if __name__ == "__main__":
    main()
