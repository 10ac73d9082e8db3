"""Figure of chapter 4: the three products of a linear layer, and which row and column make one number of each."""
from svg import document, lines, rect, text

SCALE, TOP = 9, 76
N, C, OC = 10, 6, 8  # the layer of the figure


def matrix(x, y, name, rows, columns, row=None, column=None):
    """A matrix with its name above it, and one row or one column of it, or one number of it, in colour."""
    parts = [rect(x, y, columns * SCALE, rows * SCALE, "matrix"), text(x + columns * SCALE / 2, y - 8, name, "middle")]
    if row is not None and column is not None:
        parts += [rect(x + column * SCALE, y + row * SCALE, SCALE, SCALE, "c")]
    elif row is not None:
        parts += [rect(x, y + row * SCALE, columns * SCALE, SCALE, "a")]
    elif column is not None:
        parts += [rect(x + column * SCALE, y, SCALE, rows * SCALE, "b")]
    return parts


def product(x, title, left, right, result, words):
    """result = left times right. Each is (name, rows, columns); row 2 and column 3 make a number of the result."""
    at, parts = x, [text(x, 32, title, "title")]
    matrices = ("", result, 2, 3), ("=", left, 2, None), ("times", right, None, 3)
    for sign, (name, rows, columns), row, column in matrices:
        if sign:
            width = 20 if sign == "=" else 44
            parts += [text(at + width / 2, TOP + 40, sign, "middle")]
            at += width
        parts += matrix(at, TOP, name, rows, columns, row, column)
        at += columns * SCALE
    return parts + lines(x, TOP + N * SCALE + 28, *words)


def picture():
    parts = [*product(24, "Forward", ("inp", N, C), ("weight\u1d40", C, OC), ("out", N, OC),
                      ("(N, OC): sums along C", "a row of inp, a row of weight")),
             *product(312, "Gradient of the input", ("dout", N, OC), ("weight", OC, C), ("dinp", N, C),
                      ("(N, C): sums along OC", "a row of dout, a column of weight")),
             *product(594, "Gradient of the weight", ("dout\u1d40", OC, N), ("inp", N, C), ("dweight", OC, C),
                      ("(OC, C): sums along N", "a column of dout, a column of inp"))]
    return document("The three products of a linear layer", 880, TOP + N * SCALE + 64, parts)
