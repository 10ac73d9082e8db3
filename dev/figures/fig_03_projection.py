"""Figure of chapter 3: the backward of LayerNorm takes from g its parts along 1 and along n."""
import math

from svg import document, lines, text

X, Y = 176, 262          # the origin
ONE, N, UP = (1.0, 0.0), (0.55, -0.42), (0.0, -1.0)  # the directions on the page


def at(one, n, up):
    """The place of a point on the page."""
    return [X + one * ONE[0] + n * N[0] + up * UP[0], Y + one * ONE[1] + n * N[1] + up * UP[1]]


def slanted(begin, end, name, width=3):
    """An arrow in a colour."""
    (x1, y1), (x2, y2) = begin, end
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    sides = ((0, 1), (length - 11, 1), (length - 11, 12 / width), (length, 0),
             (length - 11, -12 / width), (length - 11, -1), (0, -1))  # along the arrow, and across it in half widths
    points = (f"{x1 + s * dx - c * width / 2 * dy:.1f} {y1 + s * dy + c * width / 2 * dx:.1f}" for s, c in sides)
    return f'<path class="{name}" d="M{"L".join(points)}Z"/>'


def dashed(*points):
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="line" stroke-dasharray="4 4" d="M{steps}"/>'


def label(point, words, dx=0, dy=0, name=""):
    return text(round(point[0] + dx), round(point[1] + dy), words, name)


def picture():
    floor = [at(-110, -70, 0), at(330, -70, 0), at(330, 190, 0), at(-110, 190, 0)]
    origin, g, shadow = at(0, 0, 0), at(130, 120, 150), at(130, 120, 0)
    one, n = at(130, 0, 0), at(0, 120, 0)
    parts = [text(24, 32, "dx is g without its parts along 1 and along n", "title"),
             f'<path class="matrix" d="M{"L".join(f"{x:.0f} {y:.0f}" for x, y in floor)}Z"/>',
             dashed(one, shadow, n),
             slanted(origin, at(210, 0, 0), "head", 1.5), label(at(210, 0, 0), "1 = (1, 1, .., 1)", 8, 5),
             slanted(origin, at(0, 175, 0), "head", 1.5), label(at(0, 175, 0), "n", 6, -4),
             slanted(origin, one, "c"), label(one, "mean(g) 1", -84, 20),
             slanted(origin, n, "c"), label(n, "mean(g n) n", -98, 4),
             slanted(origin, g, "b"), label(g, "g", 8, 2),
             slanted(shadow, g, "a"), label(at(130, 120, 75), "what is left: dx / rstd", 10, 4),
             *lines(650, 92, "The floor holds the rows", "that change nothing:", "a constant row shifts x,",
                    "and n makes x wider.", "", "Green: the shadow of g", "on the floor.",
                    "Orange: dx stands", "upright on the floor.")]
    return document("The backward of LayerNorm as a projection", 860, 330, parts)
