"""Figure of chapter 9: the step against the size of the gradient, and the first steps without bias correction."""
import math

from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, curve, document, text

EPSILON, BETA1, UPDATES, HIGH = 1e-8, 0.9, 60, 7
SIZES, STEPS = (-12, 2), (-4, 2)  # powers of ten


def sizes(x):
    """The first step of a weight whose gradient is 10^i, in units of the learning rate."""
    to_pixels = place(x, SIZES, STEPS)
    parts = [text(x, 28, "A step by the size of its gradient", "title"),
             *axes(x, TOP, WIDTH, HEIGHT, [((i + 12) / 14, f"1e{i}") for i in (-12, -8, -4, 0)],
                   [((i + 4) / 6, f"1e{i}") for i in (-4, -2, 0, 2)])]
    powers = [i / 4 for i in range(4 * SIZES[0], 4 * SIZES[1] + 1)]
    adam = [(power, power - math.log10(10 ** power + EPSILON)) for power in powers]
    return [*parts, curve([to_pixels(at) for at in adam], "b"),
            curve([to_pixels((i, i)) for i in (STEPS[0], STEPS[1])], "a"),
            text(x + 120, TOP + 52, "Adam"), text(x + 206, TOP + 148, "gradient descent", "end")]


def first(x):
    """The steps of a weight whose gradient is always 1, in units of the learning rate."""
    to_pixels = place(x, (0, UPDATES), (0, HIGH))
    parts = [text(x, 28, "First steps without bias correction", "title"),
             *axes(x, TOP, WIDTH, HEIGHT, [(i / UPDATES, str(i)) for i in (0, 20, 40, 60)],
                   [(i / HIGH, str(i)) for i in range(0, HIGH, 2)])]
    for colour, beta2 in (("a", 0.999), ("c", 0.95)):
        steps = [(1 - BETA1 ** t) / math.sqrt(1 - beta2 ** t) for t in range(1, UPDATES + 1)]
        parts += [curve([to_pixels((t + 1, step)) for t, step in enumerate(steps)], colour),
                  text(x + 190, round(to_pixels((0, steps[35]))[1] - 10), f"beta2 = {beta2}: first {steps[0]:.2f}")]
    return [*parts, curve([to_pixels((1, 1)), to_pixels((UPDATES, 1))], "b"),
            text(x + 190, TOP + HEIGHT - 8, "with it: 1")]


def picture():
    return document("The size of a step", 840, 286, [*sizes(LEFT), *first(LEFT + 428)])
