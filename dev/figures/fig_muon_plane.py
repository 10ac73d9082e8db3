"""Figure of doc/muon.md: the loss of a small model on the plane through its first weights and the last weights of two
optimizers, with their paths, and the losses along them.
"""
from plots import HEIGHT, LEFT, RUNS, TOP, WIDTH, contours, losses, place, trail
from svg import document, key, rect, text

PLANE = RUNS["plane"]
LEVELS = [2.5, 2.6, 2.7, 2.8, 2.9, 3, 3.2, 3.4, 3.6, 3.8, 4, 4.5, 5]
COLOURS = (("AdamW", "b"), ("Muon", "a"))


def plane(x):
    xs, ys = PLANE["xs"], PLANE["ys"]
    to_pixels = place(x, (xs[0], xs[-1]), (ys[0], ys[-1]))
    parts = [text(x, 28, "The loss on a plane through the weights", "title"), rect(x, TOP, WIDTH, HEIGHT, "frame"),
             *contours(xs, ys, PLANE["grid"], LEVELS, to_pixels)]
    for name, colour in COLOURS:
        points, values = [to_pixels(point) for point in PLANE["paths"][name]], PLANE["losses"][name]
        parts += trail(points, colour)
        parts.append(text(round(points[-1][0]), round(points[-1][1]) + 20, f"{values[-1]:.2f}", "middle"))
    return parts + [text(round(points[0][0]), round(points[0][1]) + 20, f"{values[0]:.2f}", "middle")]


def picture():
    series = [(colour, PLANE["losses"][name]) for name, colour in COLOURS]
    keys = [part for i, (name, colour) in enumerate(COLOURS) for part in key(LEFT + 110 * i, 262, colour, name)]
    return document("The paths of AdamW and Muon", 840, 286, [
        *plane(LEFT), *losses(LEFT + 428, "The loss along both paths", 200, 2.2, 4.2, series), *keys])
