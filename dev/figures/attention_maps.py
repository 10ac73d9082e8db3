#!/usr/bin/env python3
"""Prints the attention of a small model's heads, for fig_05_heads.py: p[i,j] for j <= i, in digits from 0 to 9.

The model of the figure was trained on the text of this book (another text gives other maps):

    cat doc/*.md > book.txt
    ./train_gpt2 --train-data book.txt --layers 2 --heads 4 --channels 128 --seq-len 64 --batch-size 16 --steps 3000 \\
        --lr 0.002 --out-dir heads
    python3 dev/figures/attention_maps.py heads/model_00003000.bin "the tokens of the text"
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from dev.twin.weights import bin_config, parts_of, read_model  # noqa: E402


def attention(path, text):
    """p (L, heads, T, T) of a text of bytes."""
    config, _ = bin_config(path)
    w, tokens = parts_of(read_model(path), config), np.frombuffer(text.encode(), np.uint8)
    T, maps = len(tokens), []

    def norm(x, name):
        n = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        return n * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    for layer in (f"h.{i}." for i in range(config.L)):
        qkv = linear(norm(x, layer + "ln_1"), layer + "attn.c_attn")
        q, k, v = (part.reshape(T, config.heads, -1).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2])
        p = np.where(np.tril(np.ones((T, T), bool)), np.exp(scores - scores.max(2, keepdims=True)), 0)
        maps.append(p / p.sum(2, keepdims=True))
        x = x + linear((maps[-1] @ v).swapaxes(0, 1).reshape(T, -1), layer + "attn.c_proj")
        u = linear(norm(x, layer + "ln_2"), layer + "mlp.c_fc")
        x = x + linear(u / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u ** 3))), layer + "mlp.c_proj")
    return maps


def main():
    if len(sys.argv) != 3:
        raise SystemExit("attention_maps.py: expected a model's .bin file and a text")
    for i, layer in enumerate(attention(*sys.argv[1:])):
        for h, p in enumerate(layer):
            digits = "".join(str(round(9 * p[row, column])) for row in range(len(p)) for column in range(row + 1))
            print(f"layer {i + 1}, head {h + 1}: {digits}")


if __name__ == "__main__":
    main()
