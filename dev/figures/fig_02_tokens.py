"""Figure of chapter 2: the embedding reads rows of a table, and its backward adds rows to it. The tokens are those of
the chapter's example."""
from svg import document, line, lines, rect, text

TOKENS, TABLE, STEP, TOP = (83, 258, 262, 77, 262, 260), (77, 83, 258, 260, 262), 30, 92
ORDER = sorted(range(len(TOKENS)), key=lambda row: TOKENS[row])  # sorted() keeps the order of equal tokens


def column(x, labels, title, width=56):
    """A tensor, row by row. The rows of token 262 are orange."""
    parts = [text(x, TOP - 14, title)]
    for i, (label, token) in enumerate(labels):
        y = TOP + STEP * i
        parts += [rect(x, y, width, 18, "a" if token == 262 else "matrix"), text(x - 8, y + 14, label, "small end")]
    return parts


def joined(x1, i, x2, j):
    return line(x1, TOP + STEP * i + 9, x2, TOP + STEP * j + 9)


def picture():
    rows = [(str(token), token) for token in TOKENS]
    table = [(str(token), token) for token in TABLE]
    in_order = [(f"row {row}", TOKENS[row]) for row in ORDER]
    parts = [text(24, 32, "Forward: read rows", "title"), *column(70, table, "wte"), *column(246, rows, "out"),
             *[joined(130, TABLE.index(token), 208, i) for i, token in enumerate(TOKENS)],
             text(400, 32, "Backward: sort, then add runs", "title"), *column(446, rows, "dout"),
             *column(602, in_order, "rows sorted by token"), *column(766, table, "dwte"),
             *[joined(506, row, 556, i) for i, row in enumerate(ORDER)],
             *[joined(662, i, 734, TABLE.index(TOKENS[row])) for i, row in enumerate(ORDER)],
             *lines(24, TOP + 6 * STEP + 18, "Each row of the batch copies the row of its token (and adds wpe).",
                    "Token 262 is twice in the batch: after the sort its rows are neighbours, and one block of the GPU "
                    "adds them in this order.")]
    return document("Reading rows and adding rows", 840, TOP + 6 * STEP + 52, parts)
