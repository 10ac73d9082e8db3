"""Figure of chapter 15: the sums of two mma, lane by lane, are the left operand of the next product."""
from svg import arrow, document, lines, rect, text

CELL, ROWS = 18, 8      # of 16 rows, the first 8: rows 8 to 15 belong to the same lanes
SHOWN = {0: "a", 1: "b", 2: "c"}  # lanes that have a colour


def matrix(x, y, first, columns):
    """The lane that holds each number: columns 2 (lane mod 4) and 2 (lane mod 4) + 1 of row lane / 4."""
    parts = []
    for row in range(ROWS):
        for column in range(columns):
            lane = 4 * row + column % 8 // 2
            left, top = x + CELL * column, y + CELL * row
            parts += [rect(left, top, CELL, CELL, SHOWN.get(lane, "matrix")),
                      text(left + CELL / 2, top + 13, lane, "small middle")]
    return parts + [text(x + CELL * column + 2, y - 6, first + column, "small") for column in (0, columns - 2)]


def picture():
    parts = [text(20, 30, "p goes from product to product in the registers of its lane", "title"),
             text(20, 62, "Sums of two mma: scores of keys 0-7, 8-15"), *matrix(20, 90, 0, 8), *matrix(184, 90, 8, 8),
             text(420, 62, "Left operand: 16 queries x 16 keys"), *matrix(440, 90, 0, 16), arrow(340, 162, 428, 162),
             text(384, 150, "round", "small middle"), text(384, 180, "and pack", "small middle"),
             *lines(20, 262,
                    "A number in a cell is the lane that holds it. Rows 8 to 15 lie in the lanes of rows 0 to 7.",
                    "A row lies in four lanes, so its maximum takes two shuffles.")]
    return document("p in registers", 760, 296, parts)
