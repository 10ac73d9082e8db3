"""Figure of chapter 6: GELU beside ReLU, and the slopes that their backwards multiply by."""
import math

from plots import HEIGHT, TOP, WIDTH, place
from svg import axes, curve, document, key, line, lines, text

XS = [x / 20 for x in range(-60, 61)]


def gelu(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def panel(x, title, low, high, ticks, functions):
    """Curves over -3 to 3. functions: (colour, function)."""
    to_pixels, labels = place(x, (-3, 3), (low, high)), [((tick - low) / (high - low), f"{tick:g}") for tick in ticks]
    zero = round(to_pixels((0, 0))[1], 1)
    return [text(x, 28, title, "title"), line(x, zero, x + WIDTH, zero),
            *axes(x, TOP, WIDTH, HEIGHT, ((0, "-3"), (0.5, "0"), (1, "3")), labels),
            *[curve([to_pixels((at, function(at))) for at in XS], colour, 2.5) for colour, function in functions]]


def picture():
    parts = [*panel(44, "Forward", -0.5, 3, (0, 1, 2, 3), (("b", lambda x: max(x, 0)), ("a", gelu))),
             *panel(472, "The slope, for the backward", -0.25, 1.25, (0, 0.5, 1),
                    (("b", lambda x: float(x > 0)), ("a", lambda x: (gelu(x + 1e-4) - gelu(x - 1e-4)) / 2e-4))),
             *key(64, TOP, "a", "GELU"), *key(64, TOP + 22, "b", "ReLU: x if x &gt; 0, else 0"),
             *lines(24, 298, "ReLU passes no gradient to a negative number. GELU's slope is smooth: 1/2 at 0, a little "
                    "below 0 left of -0.75,", "and close to 0 far on the left.")]
    return document("GELU and ReLU", 840, 336, parts)
