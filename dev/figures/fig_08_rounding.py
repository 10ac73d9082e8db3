"""Figure of chapter 8: errors of sums in float, the tolerance that their length gives, and what a mistake costs."""
import math
import random
from ctypes import c_float

from svg import axes, curve, document, key, lines, rect, text

X, Y, WIDTH, HEIGHT = 80, 62, 440, 240
LENGTHS, SUMS, EPSILON, LOW = [2 ** i for i in range(2, 13)], 12, 2.0 ** -23, -8  # the axis begins at 1e-8


def error(terms):
    """Of a sum of numbers between -1 and 1 in order, as a part of the sum's standard deviation."""
    total = 0.0
    for term in terms:
        total = c_float(total + term).value
    return abs(total - math.fsum(terms)) / math.sqrt(len(terms) / 3)


def place(length, size):
    return X + WIDTH * math.log2(length) / 12, Y + HEIGHT * math.log10(size) / LOW


def picture():
    draw, parts = random.Random(8), [text(24, 28, "Errors of sums in float", "title"), *axes(
        X, Y, WIDTH, HEIGHT, [(i / 12, str(2 ** i)) for i in range(0, 13, 2)],
        [(1 - i / LOW, f"1e{i}" if i else "1") for i in range(LOW, 1, 2)])]
    for length in LENGTHS:
        errors = [error([c_float(draw.uniform(-1, 1)).value for _ in range(length)]) for _ in range(SUMS)]
        parts += [rect(round(x - 2, 1), round(y - 2, 1), 4, 4, "b")
                  for x, y in (place(length, size) for size in errors if size > 10 ** LOW)]
    for colour, limit in (("c", lambda length: 2 * math.sqrt(length) * EPSILON), ("a", lambda _: 0.1)):
        parts.append(curve([place(length, limit(length)) for length in LENGTHS], colour, 3))
    return document("Rounding, tolerance and mistakes", 840, Y + HEIGHT + 56, [
        *parts, text(X + WIDTH / 2, Y + HEIGHT + 42, "terms of the sum", "middle"),
        *key(550, 80, "a", "a forgotten term: 0.1"), *key(550, 150, "c", "tolerance: 2 sqrt(K) epsilon"),
        *key(550, 220, "b", f"{SUMS} sums for each length K"),
        *lines(550, 258, "An error counts as a part of the", "sum's standard deviation.")])
