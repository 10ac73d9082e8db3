"""Figure of chapter 16: a reduce-scatter around a ring of four ranks, and what the busiest rank sends."""
from svg import axes, curve, document, lines, rect, text

R, CELL, TOP = 4, 26, 84
COLOURS = ("a", "b", "c", "matrix")  # of the ranks


def ranks(turn):
    """The ranks whose numbers part p of rank r holds after so many turns."""
    held = {(r, p): [r] for r in range(R) for p in range(R)}
    for t in range(turn):
        before = dict(held)
        for r in range(R):
            part = (r - 1 - t) % R
            held[(r + 1) % R, part] = before[(r + 1) % R, part] + before[r, part]
    return held


def turn(x, number):
    """Each cell is a part of a rank. It has a stripe for each rank whose numbers are in it."""
    parts = [text(x + R * CELL / 2, TOP - 12, f"turn {number}" if number else "at the start", "small middle")]
    for (r, p), held in ranks(number).items():
        left, top, high = x + CELL * p, TOP + 40 * r, (CELL - 4) / R
        parts.append(rect(left, top, CELL - 3, CELL - 3, "frame"))
        parts += [rect(left, round(top + high * of, 1), CELL - 3, high, COLOURS[of]) for of in held]
    return parts


def picture():
    to_pixels = lambda n, arrays: (620 + 180 * n / 16, 244 - 160 * arrays / 16)
    parts = [text(20, 30, "Which ranks' numbers a part holds: four parts, four ranks", "title"),
             text(600, 30, "Arrays that rank 0 sends", "title"),
             *(text(20, TOP + 16 + 40 * r, f"rank {r}") for r in range(R)),
             *(part for t in range(R) for part in turn(74 + (R * CELL + 20) * t, t)),
             *lines(20, 262, "A stripe is a rank. In a turn each rank passes one part to the next one."),
             *axes(620, 84, 180, 160, ((0.5, "8 ranks"), (1, "16")), ((0, "0"), (0.5, "8"), (1, "16"))),
             text(644, 104, "all to rank 0: R - 1", "small"), text(690, 218, "a ring: 2 (R - 1) / R", "small")]
    for colour, arrays in (("a", lambda n: n - 1), ("b", lambda n: 2 * (n - 1) / n)):
        parts.append(curve([to_pixels(n, arrays(n)) for n in range(1, 17)], colour))
    return document("A reduce-scatter around a ring", 860, 290, parts)
