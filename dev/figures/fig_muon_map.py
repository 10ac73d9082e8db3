"""Figure of doc/muon.md: what a matrix does to all inputs of length 1, and what the nearest orthogonal matrix does."""
import math

from svg import curve, document, lines, path, text

U, V, S = math.radians(65), math.radians(15), (1.0, 0.3)  # N = U S V^T: the angles of u(1) and v(1), and S
RADIUS, HIGH = 84, 150


def turned(angle, across, up):
    return across * math.cos(angle) - up * math.sin(angle), across * math.sin(angle) + up * math.cos(angle)


def panel(x, title, angle, sizes, names):
    """The circle with its two directions, stretched by sizes and then turned."""
    def to_pixels(across, up):
        a, b = turned(angle, across * sizes[0], up * sizes[1])
        return x + RADIUS * a, HIGH - RADIUS * b
    round_about = [to_pixels(math.cos(math.pi * i / 40), math.sin(math.pi * i / 40)) for i in range(81)]
    parts = [text(x, 32, title, "title middle"), path(round_about)]
    for end, colour, name in (((1, 0), "a", names[0]), ((0, 1), "b", names[1])):
        tip = to_pixels(*end)
        away = 1 + 26 / math.dist(tip, (x, HIGH))
        parts += [curve([(x, HIGH), tip], colour, 3),
                  text(round(x + away * (tip[0] - x)), round(HIGH + away * (tip[1] - HIGH) + 4), name, "middle")]
    return parts


def picture():
    return document("A matrix as a map, and its singular value decomposition", 840, 300, [
        *panel(140, "All x of length 1", V, (1, 1), ("v(1)", "v(2)")),
        *panel(420, "N x", U, S, ("s(1) u(1)", "s(2) u(2)")), *panel(700, "U V^T x", U, (1, 1), ("u(1)", "u(2)")),
        *lines(60, 266, "V^T turns v(1) and v(2) to the axes, S stretches the axes, and U turns them to u(1) and u(2).",
               "Muon's step leaves S out: each direction of the input moves the output equally far.")])
