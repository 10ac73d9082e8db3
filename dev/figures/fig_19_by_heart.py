"""Figure of chapter 19: a batch learned by heart, with mistakes in the backward. by_heart.py makes its numbers."""
import json
import math
import os

from plots import HEIGHT, LEFT, TOP, place
from svg import axes, curve, document, text

WIDE, LOW, HIGH = 400, 5e-4, 10
MARKS = (  # name, colour, how far below the curve's end the words stand, words
    ("no_mean_gn", "matrix", 5, "LayerNorm without mean(g n)"), ("no_delta", "c", -2, "attention without delta"),
    ("no_mean_g", "c", 16, "LayerNorm without mean(g)"), ("no_lookup", "a", 5, "wte from the head only"),
    ("no_bias", "a", -2, "no gradient for biases"), ("no_gelu_term", "a", 6, "GELU without its second term"),
    ("right", "b", 14, "no mistake"))


def picture():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "by_heart.json"), encoding="utf-8") as file:
        runs = json.load(file)
    digits = math.log10(LOW), math.log10(HIGH)
    to_pixels = place(LEFT + 16, (0, 300 * 330 / WIDE), digits)
    ticks = [((math.log10(loss) - digits[0]) / (digits[1] - digits[0]), f"{loss:g}") for loss in (1e-3, 0.1, 10)]
    parts = [text(LEFT + 16, 28, "Loss of one batch, learned by heart", "title"),
             *axes(LEFT + 16, TOP, WIDE, HEIGHT, ((0, "0"), (0.5, "150 steps"), (1, "300")), ticks)]
    for name, colour, down, words in MARKS:
        points = [to_pixels((10 * i, math.log10(loss))) for i, loss in enumerate(runs[name])]
        parts += [curve(points, colour), text(round(points[-1][0]) + 8, round(points[-1][1]) + down,
                                              f"{runs[name][-1]:.4f}: {words}")]
    return document("A batch learned by heart with a wrong backward", 780, 290, parts)
