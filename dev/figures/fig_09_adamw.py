"""Figure of chapter 9: the schedules of llmc/run/schedulers.h, and what a spike does to the steps of Adam.

The right panel has the numbers of the chapter's example: gradients of 1, with one of 100 at update 101.
"""
import math

from svg import axes, curve, document, lines, text

WARMUP, TOTAL = 10, 100
SHAPES = (("cosine", "a", lambda x: 0.5 * (1 + math.cos(math.pi * x)), 1),
          ("linear", "b", lambda x: 1 - x, 1),
          ("wsd", "c", lambda x: 1 - math.sqrt(x), 5))
LEFT, TOP, WIDTH, HEIGHT = 44, 56, 330, 150


def rate(shape, part, step):
    """As schedule_lr, with a peak of 1 and 0 at the end."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    start = max(WARMUP, TOTAL - TOTAL // part)
    return shape(max(step - start, 0) / (TOTAL - start))


def moves(spike):
    """How far a weight moves in each update, in learning rates."""
    m = v = 0.0
    for t in range(1, 221):
        g = spike if t == 101 else 1.0
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        yield m / (1 - 0.9 ** t) / math.sqrt(v / (1 - 0.95 ** t))


def panel(x, title, y_label, x_labels):
    return [text(x, 28, title, "title"),
            *axes(x, TOP, WIDTH, HEIGHT, x_labels, ((0, "0"), (1 - 8 / HEIGHT, y_label)))]


def schedules(x):
    parts = panel(x, "The learning rate", "peak", ((WARMUP / TOTAL, "warm-up"), (0.8, "4/5"), (1, "end")))
    for name, colour, shape, part in SHAPES:
        parts.append(curve([(x + WIDTH * step / TOTAL, TOP + 8 + (HEIGHT - 8) * (1 - rate(shape, part, step)))
                            for step in range(TOTAL + 1)], colour))
    return parts + [text(x + 244, TOP + 4, "wsd"), text(x + 128, TOP + 34, "cosine"), text(x + 100, TOP + 84, "linear")]


def spike(x):
    parts = panel(x, "A spike of 100 among gradients of 1", "lr", ((0, "update 90"), (1, "220")))
    for height, colour in ((1.0, "b"), (100.0, "a")):
        steps = list(moves(height))[89:]
        parts.append(curve([(x + WIDTH * i / (len(steps) - 1), TOP + 8 + (HEIGHT - 8) * (1 - step))
                            for i, step in enumerate(steps)], colour))
    return parts + [text(x + 120, TOP + 28, "clipped to 1"), *lines(x + 60, TOP + 58, "not clipped: v remembers the",
                                                                    "spike long after m forgot it")]


def picture():
    return document("Schedules and a spike", 840, 244, [*schedules(LEFT), *spike(LEFT + 428)])
