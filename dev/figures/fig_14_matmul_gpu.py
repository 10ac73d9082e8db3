"""Figure of chapter 14: the tiles of a multiply, from the matrices to a thread, and what each level reads."""
from svg import arrow, document, lines, rect, text

N, OC, C = 160, 200, 100  # pixels of the matrices
X, Y = 150, 150           # where out begins


def matrices():
    """inp on the left, weight above, out between them, and a block's tile with its strips."""
    return [rect(X - C - 14, Y, C, N, "matrix"), rect(X, Y - C - 14, OC, C, "matrix"), rect(X, Y, OC, N, "matrix"),
            rect(X - C - 14, Y + 40, C, 40, "b"), rect(X + 80, Y - C - 14, 40, C, "c"),
            rect(X + 80, Y + 40, 40, 40, "a"),
            text(X - C - 14, Y - 8, "inp (N,C)"), text(X + OC / 2, Y - C - 20, "weight^T (C,OC)", "middle"),
            text(X + OC / 2, Y + N + 18, "out (N,OC)", "middle")]


def tile(x, size, rows, columns, title, names, words):
    """A tile cut into rows x columns; one part is chosen. Its strips stand on its left and above it."""
    height, width = size // rows, size // columns
    shapes = [text(x, 52, title, "title"), rect(x + 20, 92, size, size, "matrix"), rect(x + 20, 92, width, height, "a"),
              rect(x, 92, 14, height, "b"), rect(x + 20, 72, width, 14, "c")]
    shapes += [rect(x + 20, 92, i * width, size, "frame") for i in range(1, columns)]
    shapes += [rect(x + 20, 92, size, i * height, "frame") for i in range(1, rows)]
    return [*shapes, *[text(x + 28 + size, 104 + 18 * i, name, "small") for i, name in enumerate(names)],
            *lines(x, 106 + size + 14, *words)]


def picture():
    parts = [text(20, 22, "A block", "title"), *matrices(),
             *tile(430, 128, 2, 2, "Its warps", ("128 x 128", "4 warps"),
                   ("A warp: 64 x 64 values.", "(64 + 64) / 64^2 = 1/32 of a", "number a product, from",
                    "shared memory.")),
             *tile(680, 128, 4, 8, "A warp's mma", ("64 x 64", "4 x 8 of them"),
                   ("mma: 16 x 8 values and 16", "channels at once, all from", "registers: 128 sums a",
                    "thread.")),
             arrow(372, 210, 416, 210), arrow(632, 210, 668, 210),
             *lines(20, 356, "Orange: what is computed. Blue and green: the strips of inp and weight that it reads.",
                    "A block reads (128 + 128) / 128^2 = 1/64 of a number for a product from the L2 cache.")]
    return document("The tiles of a multiply", 920, 390, parts)
