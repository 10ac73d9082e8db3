"""Figure of chapter 5: the tiles of the T x T scores, forward and in the backward for keys and values."""
from svg import arrow, document, lines, rect, text

TILES, STEP, SIZE = 7, 26, 22


def triangle(x, y, own, at_work):
    """The tiles that are computed: keys up to the query's. own(i, j): is it a tile of the block?"""
    def name(i, j):
        return "b" if (i, j) == at_work else "frame" if own(i, j) else "matrix"
    return [rect(x + STEP * j, y + STEP * i, SIZE, SIZE, name(i, j)) for i in range(TILES) for j in range(i + 1)]


def forward(x, y):
    row, key = 5, 3
    right = x + STEP * (row + 1)
    return [text(x - 34, 32, "Forward: a block owns queries", "title"), text(x, y - 34, "keys and values"),
            text(x - 34, y + STEP * TILES + 14, "queries"),
            *[rect(x + STEP * j, y - 26, SIZE, 16, "a" if j == key else "matrix") for j in range(TILES)],
            *[rect(x - 26, y + STEP * i, 16, SIZE, "c" if i == row else "matrix") for i in range(TILES)],
            *triangle(x, y, lambda i, j: i == row, (row, key)),
            arrow(right + 2, y + STEP * row + 11, right + 66, y + STEP * row + 11),
            *lines(right + 72, y + STEP * row - 1, "m, l and a sum", "for each query"),
            *lines(x + 112, y + 12, "above the diagonal:", "never computed")]


def backward(x, y):
    column, query = 2, 4
    bottom = y + STEP * TILES
    return [text(x - 34, 32, "Backward for dk, dv: a block owns keys", "title"), text(x, y - 34, "keys and values"),
            text(x - 34, y + STEP * TILES + 14, "queries"),
            *[rect(x + STEP * j, y - 26, SIZE, 16, "c" if j == column else "matrix") for j in range(TILES)],
            *[rect(x - 26, y + STEP * i, 16, SIZE, "a" if i == query else "matrix") for i in range(TILES)],
            *triangle(x, y, lambda i, j: j == column, (query, column)),
            arrow(x + STEP * column + 11, bottom, x + STEP * column + 11, bottom + 26),
            *lines(x + STEP * column + 26, bottom + 14, "dk and dv of these keys;",
                   "lse and delta come with each query"),
            *lines(x + 112, y + 12, "p again:", "exp(score - lse)")]


def picture():
    parts = [*forward(58, 96), *backward(478, 96),
             *lines(24, 322, "Green: rows that the block keeps. Orange: rows that pass by.",
                    "Blue: the tile of p that exists now. Outlined: before and after it.")]
    return document("The tiles of the scores", 840, 354, parts)
