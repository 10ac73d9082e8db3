#!/usr/bin/env python3
"""Learns a batch of LICENSE by heart with planted mistakes in the backward, and writes dev/figures/by_heart.json.

    python3 dev/figures/by_heart.py

Prints the loss of the last step. A run is the trainer, compiled with one mistake: a minute for all.
"""
import json
import os
import re
import subprocess
import tempfile
import textwrap

from train_runs import MISTAKES, ROOT, with_mistake

OPTIONS = ("--overfit --layers 2 --heads 4 --channels 64 --seq-len 64 --batch-size 4 --steps 300 --lr 1e-3 "
           "--final-lr-frac 1 --val-every 0 --sample-every 0 --threads 1").split()
LAYERS = "llmc/cpu/layers.h"
PLANTED = {  # what is replaced, and in which file
    **{name: (MISTAKES[name], ) for name in ("right", "no_mean_g", "no_mean_gn", "no_gelu_term")},
    "no_lookup": ([("embedding_backward(g.wte,", "if (B < 0) embedding_backward(g.wte,")], ),
    "no_bias": ([("if (dbias != NULL)", "if (dbias != NULL && N < 0)")], LAYERS),
    "no_delta": ([("(dp[j] - dot)", "(dp[j] - 0.0f * dot)")], LAYERS)}


def losses(program, folder):
    """The loss of each step."""
    text = os.path.join(ROOT, "LICENSE")
    command = [program, "--train-data", text, "--out-dir", os.path.join(folder, "run"), "--overwrite", *OPTIONS]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(folder, "run", "main.log"), encoding="utf-8") as file:
        return [float(loss) for loss in re.findall(r"^s:\d+ trl:(\S+)", file.read(), re.M)]


def main():
    curves = {}
    for name, (replaced, *file) in PLANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            curve = losses(with_mistake(replaced, folder, *file), folder)
        print(f"{name:16} {curve[-1]:.4f}", flush=True)
        curves[name] = [*curve[::10], curve[-1]]
    with open(os.path.join(ROOT, "dev", "figures", "by_heart.json"), "w", encoding="utf-8") as file:
        file.write(textwrap.fill(json.dumps(curves), 118) + "\n")


if __name__ == "__main__":
    main()
