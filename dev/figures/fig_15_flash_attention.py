"""Figure of chapter 15: the tiles that blocks visit, and the loop of one block with the place of each number."""
from svg import arrow, document, lines, rect, text

TILES, CELL, X, Y = 6, 30, 60, 86  # tiles of queries and of keys


def triangle():
    """The scores of a head, tile by tile. Nothing of it is in memory."""
    parts = [text(20, 32, "Scores of a head, in tiles", "title"), text(X, Y - 12, "keys", "small"),
             text(X - 8, Y + 12, "queries", "small end")]
    for i in range(TILES):
        for j in range(TILES):
            name = "frame" if j > i else "b" if j == i else "matrix"
            parts.append(rect(X + CELL * j, Y + CELL * i, CELL - 3, CELL - 3, "a" if (i, j) == (4, 2) else name))
    below = Y + TILES * CELL + 18
    return parts + lines(20, below, "Row: a block. Orange: the tile at work.",
                         "Blue: on the diagonal, keys are hidden.", "Frames: never loaded (the causal skip).")


def box(x, y, width, height, name, title, words):
    return [rect(x, y, width, height, name), text(x + width / 2, y - 8, title, "middle"),
            text(x + width / 2, y + height / 2 + 4, words, "small middle")]


def loop():
    """One turn of a block's loop, from the left to the right."""
    return [text(340, 32, "One turn of the loop", "title"),
            text(340, 90, "device memory", "small"), *box(440, 70, 90, 34, "matrix", "k tile", "keys x HS"),
            *box(650, 70, 90, 34, "matrix", "v tile", "keys x HS"), text(340, 170, "shared memory", "small"),
            *box(440, 150, 90, 34, "matrix", "", "k"), *box(650, 150, 90, 34, "matrix", "", "v"),
            arrow(485, 104, 485, 148), arrow(695, 104, 695, 148), text(340, 240, "registers", "small"),
            *box(340, 250, 60, 60, "matrix", "", "q"), *box(455, 250, 60, 60, "matrix", "", "s = q k^T"),
            *box(560, 250, 60, 60, "matrix", "", "p"), *box(665, 250, 60, 60, "matrix", "", "o += p v"),
            arrow(400, 280, 453, 280), arrow(485, 184, 485, 248), arrow(515, 280, 558, 280), arrow(620, 280, 663, 280),
            arrow(695, 184, 695, 248), text(537, 330, "m, l, correction", "small middle"),
            *lines(340, 356, "The sums s are the operand p of the next product, lane by lane.")]


def picture():
    return document("FlashAttention's loop", 760, 376, [*triangle(), *loop()])
