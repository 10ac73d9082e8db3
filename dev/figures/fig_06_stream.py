"""Figure of chapter 6: how the variance of the stream grows, when each sublayer adds a row of random numbers."""
import random

from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, curve, document, key, path, text

CHANNELS, DEPTHS = 256, (("b", 12), ("a", 48))


def panel(x, title, high, ticks, deviation):
    """A curve for each depth, and dashed the sum of the variances. deviation: of a row, from the depth."""
    to_pixels, draw = place(x, (0, 96), (0, high)), random.Random(1)
    labels = [(tick / high, f"{tick:g}") for tick in ticks]
    parts = [text(x, 28, title, "title"),
             *axes(x, TOP, WIDTH, HEIGHT, ((0, "0"), (0.25, "24"), (1, "96 sublayers")), labels)]
    for colour, layers in DEPTHS:
        row, points, each = [0.0] * CHANNELS, [to_pixels((0, 0))], deviation(layers)
        for i in range(1, 2 * layers + 1):
            row = [number + draw.gauss(0, each) for number in row]
            points.append(to_pixels((i, sum(number * number for number in row) / CHANNELS)))
        dashed = path([points[0], to_pixels((2 * layers, 2 * layers * each ** 2))], ' stroke-dasharray="4 3"')
        parts += [dashed, curve(points, colour)]
    return parts


def picture():
    parts = [*panel(LEFT, "Rows of variance 1", 100, (0, 24, 96), lambda layers: 1),
             *panel(LEFT + 428, "Rows of variance 1 / (2 L)", 1.25, (0, 0.5, 1), lambda layers: (2 * layers) ** -0.5),
             *key(LEFT + 30, TOP, "b", "12 blocks"), *key(LEFT + 30, TOP + 22, "a", "48 blocks"),
             text(24, 298, f"The variance of a sum of random rows of {CHANNELS} numbers. "
                  "Dashed: the sum of the rows' variances.")]
    return document("How the stream grows", 860, 318, parts)
