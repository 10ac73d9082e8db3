"""Figure of chapter 13: the roofline of an H100, with the versions of three ladders and their bounds at GPT-2's shape.
Their operations, bytes and bounds are those of dev/cuda/README.md; AdamW and LayerNorm: make ladder COLUMNS=all."""
import math
import os
import re

from svg import axes, document, key, path, rect, text

MEMORY, FP32, TENSOR = 3350e9, 66.9e12, 989e12
X, Y, WIDTH, HEIGHT = 80, 60, 560, 300
LEFT, RIGHT, LOW, HIGH = -1, 4, 11, 16  # powers of ten


def place(intensity, rate):
    return (X + WIDTH * (math.log10(intensity) - LEFT) / (RIGHT - LEFT),
            Y + HEIGHT * (1 - (math.log10(rate) - LOW) / (HIGH - LOW)))


def layers():
    """(name, operations for a byte, the rates that the bounds of its versions allow)"""
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cuda", "README.md")
    with open(page, encoding="utf-8") as file:
        tables = re.split(r"^\*\*", file.read(), flags=re.M)[1:]
    for table in tables:
        caption = re.search(r"^(\w+ \w+).*GPT-2's shape.* and ([\d.]+) GFLOP, ([\d.]+) FLOP a byte\.$", table, re.M)
        if caption and caption[1] != "matmul backward":  # it would lie on the forward's squares
            times = re.findall(r"^\| \d.*\| +([\d.]+) \w+ \| +[\d.]* \|$", table, re.M)
            yield caption[1], float(caption[3]), [float(caption[2]) * 1e15 / float(time) for time in times]


def squares():
    parts = []
    for i, (name, intensity, rates) in enumerate(sorted(layers(), key=lambda layer: layer[1])):
        for rate in rates:
            x, y = place(intensity, rate)
            parts.append(rect(round(x - 3, 1), round(y - 3, 1), 6, 6, "abc"[i]))
        parts += key(X + WIDTH + 8, Y + 190 + 22 * i, "abc"[i], f"{name}: {intensity:.3g}")
    for name, flops, size in (("AdamW", 1.25, 1.97), ("LayerNorm forward", 1.76, 0.792)):  # MFLOP, MB
        x, y = place(flops / size, flops / size * MEMORY)
        parts += [rect(round(x - 5, 1), round(y - 5, 1), 10, 10, "matrix"),
                  text(round(x + 10), round(y + 12), name, "small")]
    return parts


def picture():
    powers = [(i / (RIGHT - LEFT), f"{10.0**(i + LEFT):g}") for i in range(RIGHT - LEFT + 1)]
    rates = [(i / (HIGH - LOW), f"{10.0**(i + LOW - 12):g}") for i in range(HIGH - LOW + 1)]
    parts = [text(20, 30, "The roofline of an H100", "title"), *axes(X, Y, WIDTH, HEIGHT, powers, rates),
             text(X + 8, Y + 4, "TFLOP a second", "small"),
             text(X + WIDTH, Y + HEIGHT + 38, "operations for a byte from memory", "end"),
             path([place(10**LEFT, MEMORY * 10**LEFT), place(TENSOR / MEMORY, TENSOR)])]
    for peak, name in ((FP32, "fp32: 66.9, from 20 on"), (TENSOR, "tensor cores, bf16: 989, from 295 on")):
        x, y = place(peak / MEMORY, peak)
        parts += [path([(x, y), (X + WIDTH, y)]), text(X + WIDTH + 8, round(y + 4), name, "small")]
    x, y = place(3, 3 * MEMORY)
    parts += [text(round(x - 8), round(y - 12), "3,350 GB a second", "small end"), *squares()]
    parts.append(text(X, Y + HEIGHT + 60, "Coloured: the versions of a ladder, from the naive one at the bottom, "
                      "by their bounds at GPT-2's shape."))
    return document("The roofline of an H100", 880, 436, parts)
