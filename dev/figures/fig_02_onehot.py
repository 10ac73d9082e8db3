"""Figure of chapter 2: the embedding as a product with one-hot rows, in the numbers of the chapter's example."""
from fig_02_tokens import TABLE, TOKENS
from svg import document, rect, text

CELL, TOP = 26, 92
ONE_HOT = [[int(token == row) for row in TABLE] for token in TOKENS]          # (N, V)
WTE = [[i, i * i] for i in range(len(TABLE))]                                 # (V, C)
DOUT = [[1, 0], [0, 1], [1, 1], [2, 0], [0, 2], [3, 1]]                       # (N, C)


def product(a, b):
    return [[sum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def matrix(x, name, rows, highlight):
    """A matrix with its numbers. Cells that highlight(row, column, number) chooses are orange. E has no zeros here."""
    parts = [text(x, TOP - 12, name)]
    for i, j, number in ((i, j, number) for i, row in enumerate(rows) for j, number in enumerate(row)):
        colour = "a" if highlight(i, j, number) else "matrix"
        words = "small middle paper" if colour == "a" else "small middle"
        parts += [rect(x + CELL * j, TOP + CELL * i, CELL - 2, CELL - 2, colour)]
        parts += [text(x + CELL * j + 12, TOP + CELL * i + 17, number, words)] * (name[0] != "E" or number > 0)
    return parts


def picture():
    row, across = TABLE.index(262), [list(column) for column in zip(*ONE_HOT)]
    of_262 = [i for i, token in enumerate(TOKENS) if token == 262]
    parts = [text(24, 32, "Forward: E wte", "title"), *matrix(24, "E (N, V)", ONE_HOT, lambda i, j, n: j == row and n),
             text(166, 160, "x"), *matrix(190, "wte (V, C)", WTE, lambda i, j, n: i == row), text(258, 160, "="),
             *matrix(290, "(N, C)", product(ONE_HOT, WTE), lambda i, j, n: i in of_262),
             text(424, 32, "Backward: E transposed, times dout", "title"),
             *matrix(424, "E^T (V, N)", across, lambda i, j, n: i == row and n), text(592, 160, "x"),
             *matrix(616, "dout (N, C)", DOUT, lambda i, j, n: i in of_262), text(684, 160, "="),
             *matrix(716, "dwte (V, C)", product(across, DOUT), lambda i, j, n: i == row),
             text(24, 282, "Orange: token 262. Its ones read a row of wte twice. Transposed they add two rows.")]
    return document("The embedding as a product", 840, 304, parts)
