"""Figure of chapter 15: the bytes of a layer of GPT-2 124M for contexts of all lengths, with and without the matrix."""
import math

from svg import axes, curve, document, line, lines, rect, text

SEQUENCES, HEADS, C, RATE, MEMORY = 16, 12, 768, 3.35e12, 80e9  # RATE and MEMORY of an H100, in bytes
X, Y, WIDTH, HEIGHT = 80, 62, 420, 240
SHORT, LONG, LOW, HIGH = 8, 15, 7, 12  # powers of two of T, powers of ten of the bytes


def matrix(T):
    return 4 * SEQUENCES * HEADS * T * T


def rows(T):
    """q, k, v and out in bf16."""
    return 2 * 4 * SEQUENCES * T * C


def place(T, size):
    return (round(X + WIDTH * (math.log2(T) - SHORT) / (LONG - SHORT), 1),
            round(Y + HEIGHT * (HIGH - math.log10(size)) / (HIGH - LOW), 1))


def picture():
    units = ("10 MB", "100 MB", "1 GB", "10 GB", "100 GB", "1 TB")
    parts = [text(24, 28, "Bytes of a layer, 16 sequences", "title"),
             *axes(X, Y, WIDTH, HEIGHT, [((i - SHORT) / (LONG - SHORT), f"{2 ** i:,}") for i in range(SHORT, LONG + 1)],
                   [(i / 5, unit) for i, unit in enumerate(units)]),
             line(X, place(1, MEMORY)[1], X + WIDTH, place(1, MEMORY)[1]),
             text(X + 12, place(1, MEMORY)[1] - 8, "memory of an H100"),
             text(X + WIDTH / 2, Y + HEIGHT + 42, "context T", "middle")]
    for colour, size in (("a", matrix), ("b", rows)):
        parts.append(curve([place(2 ** i, size(2 ** i)) for i in range(SHORT, LONG + 1)], colour, 3))
    words = ["Orange: one T x T matrix of scores", "in floats for each head.", "Blue: q, k, v and out in bf16.", ""]
    for T in (1024, 8192):
        parts += [rect(place(T, size(T))[0] - 4, place(T, size(T))[1] - 4, 8, 8, "matrix") for size in (matrix, rows)]
        words += [f"T = {T:,}, least time on an H100:", f"matrix moved four times {4e3 * matrix(T) / RATE:.2g} ms,",
                  f"q, k, v and out once {1e3 * rows(T) / RATE:.2g} ms", ""]
    return document("The bytes of attention", 840, Y + HEIGHT + 60, [*parts, *lines(550, 84, *words)])
