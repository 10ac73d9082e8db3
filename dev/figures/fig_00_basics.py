"""Figure of chapter 0: a tensor and its transpose in one row of memory; a graph with a residual, forward and back."""
from svg import arrow, document, key, line, lines, rect, text

CELL, MARKED = 30, 5  # the element x[1][2]
WIDTH, STEP = 76, 104  # of the graph's nodes


def cells(x, y, rows, columns, strides):
    """A matrix whose cells say where in memory they are."""
    parts = []
    for i in range(rows):
        for j in range(columns):
            at = i * strides[0] + j * strides[1]
            parts += [rect(x + CELL * j, y + CELL * i, CELL, CELL, "matrix"),
                      *([rect(x + CELL * j, y + CELL * i, CELL, 5, "a")] if at == MARKED else []),
                      text(x + CELL * j + 15, y + CELL * i + 20, at, "middle")]
    return parts


def node(x, y, words, value, gradient):
    return [rect(x, y, WIDTH, 34, "matrix"), text(x + WIDTH // 2, y + 22, words, "middle"),
            rect(x, y - 20, 12, 12, "b"), text(x + 16, y - 9, value, "small"),
            rect(x, y + 42, 12, 12, "a"), text(x + 16, y + 53, gradient, "small")]


def graph(x, y):
    """loss = (x + w x - 5)^2 with x = 2 and w = 3."""
    nodes = (("x", 2, "6 + 18 = 24"), ("p = w x", 6, 6), ("y = x + p", 8, 6), ("e = y - 5", 3, 6), ("e e", 9, 1))
    at = [x + STEP * i for i in range(len(nodes))]
    below, above = at[1] + WIDTH // 2, y - 54
    return [*[part for left, words in zip(at, nodes) for part in node(left, y, *words)],
            *[arrow(left + WIDTH, y + 17, left + STEP, y + 17) for left in at[:-1]],
            *node(at[1], y + 100, "w", 3, 12), arrow(below, y + 78, below, y + 36),
            line(at[0] + 50, y - 4, at[0] + 50, above), line(at[0] + 50, above, at[2] + 50, above),
            arrow(at[2] + 50, above, at[2] + 50, y - 2), text(below + 20, above - 7, "the residual", "small middle")]


def picture():
    tensor = [text(24, 32, "One memory, two shapes", "title"), *cells(24, 60, 1, 6, (6, 1)), text(216, 80, "memory"),
              *cells(24, 120, 2, 3, (3, 1)), *lines(130, 144, "x: shape (2, 3)", "strides (3, 1)"),
              *cells(24, 210, 3, 2, (1, 3)), *lines(130, 250, "x.T: shape (3, 2)", "strides (1, 3)"),
              text(24, 330, "Orange: x[1][2], or x.T[2][1].")]
    return document("A tensor in memory, and a graph with a residual", 840, 364, [
        *tensor, text(318, 32, "A graph with a residual", "title"),
        *key(318, 48, "b", "value, from left to right"),
        *key(540, 48, "a", "gradient, from right to left"), *graph(318, 150),
        *lines(318, 330, "x is used twice: its gradient is a sum,", "6 along the residual, and 6 w = 18 through w x.")])
