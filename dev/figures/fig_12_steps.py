"""Figure of chapter 12: the speed of each step, from the chapter's own table, with vectors."""
import os
import re

from svg import document, key, rect, text

CHAPTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "doc", "12_matmul_cpu.md")


def picture():
    with open(CHAPTER, encoding="utf-8") as file:
        rows = re.findall(r"^\| (\d+ [^|]+?) \|.*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+ %) \|$", file.read(), re.M)
    parts = [text(24, 32, "GFLOP/s with vectors", "title"), *key(260, 20, "b", "measured, and its part of the peak"),
             *key(520, 20, "matrix", "predicted")]
    for i, (name, predicted, measured, peak) in enumerate(rows):
        y = 52 + 26 * i
        parts += [text(24, y + 14, name), rect(130, y, round(1.6 * float(predicted), 1), 18, "matrix"),
                  rect(130, y + 4, round(1.6 * float(measured), 1), 10, "b"),
                  text(round(138 + 1.6 * max(map(float, (predicted, measured)))), y + 14, f"{measured}, {peak}",
                       "small")]
    return document("The speed of each step", 840, 60 + 26 * len(rows), parts)
