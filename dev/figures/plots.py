"""What the figures of measured runs and of paths share. runs.json has the numbers; train_runs.py makes it."""
import json
import os

from svg import axes, curve, path, text

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "runs.json"), encoding="utf-8") as file:
    RUNS = json.load(file)
LEFT, TOP, WIDTH, HEIGHT = 44, 56, 330, 190  # of a panel; the next one stands 428 to the right


def place(x, wide, high):
    """A function from (across, up) to pixels of a panel at x. wide and high: the least and the most of each."""
    return lambda at: (x + WIDTH * (at[0] - wide[0]) / (wide[1] - wide[0]),
                       TOP + HEIGHT * (high[1] - at[1]) / (high[1] - high[0]))


def losses(x, title, updates, low, high, series, marks=()):
    """A panel of validation losses. series: (colour, losses); marks: (update, loss, words)."""
    to_pixels = place(x, (0, updates), (low, high))
    step = 1 if high - low > 2 else 0.5
    ticks = [step * n for n in range(1 + round(high / step)) if low <= step * n <= high]
    parts = [text(x, 28, title, "title"),
             *axes(x, TOP, WIDTH, HEIGHT, ((0, "0"), (0.5, f"{updates // 2} updates"), (1, f"{updates}")),
                   [((tick - low) / (high - low), f"{tick:g}") for tick in ticks])]
    for colour, values in series:
        points = [(updates * i / (len(values) - 1), loss) for i, loss in enumerate(values)]
        parts.append(curve([to_pixels(point) for point in points if point[1] <= high], colour))
    return parts + [text(round(to_pixels(mark)[0]), round(to_pixels(mark)[1]), mark[2]) for mark in marks]


def trail(points, colour, size=3):
    """A path that may turn: a line through points in pixels, and a dot on each."""
    lines = [curve([a, b], colour, 1.5) for a, b in zip(points, points[1:]) if a != b]
    return lines + [f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>' for x, y in points]


def contours(xs, ys, grid, levels, to_pixels):
    """The lines on which a function on a grid has the values of levels. Each cell of the grid is two triangles."""
    pieces = []
    for j, i in ((j, i) for j in range(len(ys) - 1) for i in range(len(xs) - 1)):
        corner = {(a, b): (xs[i + a], ys[j + b], grid[j + b][i + a]) for a in (0, 1) for b in (0, 1)}
        for triangle in ((corner[0, 0], corner[1, 0], corner[1, 1]), (corner[0, 0], corner[0, 1], corner[1, 1])):
            for level in levels:
                ends = [to_pixels([p[k] + (level - p[2]) / (q[2] - p[2]) * (q[k] - p[k]) for k in (0, 1)])
                        for p, q in zip(triangle, (*triangle[1:], triangle[0])) if (p[2] < level) != (q[2] < level)]
                pieces += [path(ends)] if ends else []
    return [piece.replace('"line"', '"grid"') for piece in pieces]
