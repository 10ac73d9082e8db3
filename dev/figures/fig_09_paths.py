"""Figure of chapter 9: three optimizers in a narrow valley, and the losses of four learning rates of AdamW."""
import math

from plots import HEIGHT, LEFT, RUNS, TOP, WIDTH, losses, place, trail
from svg import document, key, text

STEEP, START, UPDATES = 40.0, (-3.6, 0.8), 40  # the loss is (x^2 + STEEP y^2) / 2
WIDE, HIGH = (-4.0, 1.0), (-1.2, 1.2)


def descent(step):
    """The points of 40 updates. step(m, v, t): how far a coordinate moves, from its running means."""
    w, m, v, points = list(START), [0.0, 0.0], [0.0, 0.0], [START]
    for t in range(1, UPDATES + 1):
        for i, g in enumerate((w[0], STEEP * w[1])):
            m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.95 * v[i] + 0.05 * g * g
            w[i] -= step(g, m[i] / (1 - 0.9 ** t), v[i] / (1 - 0.95 ** t))
        points.append(tuple(w))
    return points


def valley(x):
    to_pixels = place(x, WIDE, HIGH)
    parts = [text(x, 28, "Forty updates in a narrow valley", "title")]
    centre = to_pixels((0, 0))
    for radius in (1, 2, 3, 4):
        rx, ry = WIDTH * radius / (WIDE[1] - WIDE[0]), HEIGHT * radius / math.sqrt(STEEP) / (HIGH[1] - HIGH[0])
        parts.append(f'<ellipse class="grid" fill="none" cx="{centre[0]:.1f}" cy="{centre[1]:.1f}" rx="{rx:.1f}" '
                     f'ry="{ry:.1f}" clip-path="url(#valley)"/>')
    parts.insert(0, f'<clipPath id="valley"><rect x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/></clipPath>')
    for colour, step in (("a", lambda g, m, v: 0.046 * g), ("c", lambda g, m, v: 0.046 * m),
                         ("b", lambda g, m, v: 0.15 * m / math.sqrt(v))):
        parts += trail([to_pixels(point) for point in descent(step)], colour, 2)
    names = (0, "a", "gradient descent"), (150, "c", "momentum"), (256, "b", "Adam")
    return parts + [part for across, colour, name in names for part in key(x + across, TOP + HEIGHT + 14, colour, name)]


def picture():
    marks = ((330, 3.6, "1e-4"), (400, 2.98, "3e-2"), (140, 2.86, "1e-3"), (350, 2.22, "3e-3"))
    series = [(colour, RUNS["rates"][rate]) for rate, colour in (("1e-4", "b"), ("3e-2", "a"), ("1e-3", "matrix"),
                                                                 ("3e-3", "c"))]
    rates = losses(LEFT + 428, "AdamW with four learning rates", 600, 2.1, 4.2, series, marks)
    return document("Paths of three optimizers, and four learning rates", 840, 286, [*valley(LEFT), *rates])
