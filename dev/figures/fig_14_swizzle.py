"""Figure of chapter 14: where piece 2 of eight rows lies in the banks, with plain, padded and swizzled rows."""
from svg import document, lines, rect, text

PIECES, CELL = 8, 26  # of 16 bytes, four banks, in a row of 128 bytes


def tile(x, title, padding, swizzled, *words):
    """Lines of 32 banks, eight pieces each. A cell has the number of its piece."""
    parts = [text(x, 62, title)]
    for row in range(PIECES):
        for piece in range(PIECES):
            place = row * (PIECES + padding) + (piece ^ row if swizzled else piece)
            left, top = x + CELL * (place % PIECES), 92 + CELL * (place // PIECES)
            parts += [rect(left, top, CELL - 2, CELL - 2, "a" if piece == 2 else "matrix"),
                      text(left + 12, top + 17, piece, "small middle")]
    return [*parts, text(x, 84, "banks 0-3", "small"), text(x + 208, 84, "28-31", "small end"), *lines(x, 350, *words)]


def picture():
    parts = [text(20, 30, "ldmatrix reads piece 2 of eight rows at once", "title"),
             *tile(20, "Rows of 128 bytes", 0, False, "All in the same four banks:", "8 wavefronts."),
             *tile(270, "Padded by 16 bytes", 1, False, "In 32 banks: 1 wavefront.",
                   "A ninth of the memory is unused."),
             *tile(520, "Swizzled: piece i at i xor row", 0, True, "In 32 banks: 1 wavefront.", "Nothing is unused.")]
    return document("Piece 2 of eight rows", 760, 384, parts)
