"""Figure of chapter 13: the sectors of a request, and the banks of a tile in shared memory."""
from svg import document, lines, rect, text

LANES, SECTOR, CELL = 32, 8, 5  # numbers of 4 bytes in a sector; pixels of a number
BANKS = 8                       # in the figure; a GPU has 32


def request(y, name, numbers):
    """The memory that 32 lanes touch: their numbers (orange) in their sectors (frames)."""
    sectors = sorted({number // SECTOR for number in numbers})
    used = 100 * LANES // (SECTOR * len(sectors))
    parts = [text(24, y + 15, name), text(580, y + 15, f"{len(sectors)} sectors, {used} % used")]
    for sector in range(8):
        x = 220 + 43 * sector
        parts.append(rect(x, y, 40, 20, "matrix" if sector in sectors else "frame"))
        parts += [rect(x + CELL * (n % SECTOR), y, CELL - 1, 20, "a") for n in numbers if n // SECTOR == sector]
    return parts


def requests():
    return [text(24, 32, "Device memory: a request of 32 lanes takes whole sectors of 32 bytes", "title"),
            *request(50, "neighbours", range(LANES)), *request(80, "neighbours, from byte 4 on", range(1, LANES + 1)),
            *request(110, "every second number", range(0, 2 * LANES, 2))]


def tile(x, width, title, *words):
    """A tile of 8 rows with the bank of each number. Its first column is at work."""
    parts = [text(x, 202, title)]
    for row in range(BANKS):
        for column in range(width):
            left, top = x + 24 * column, 214 + 22 * row
            parts.append(rect(left, top, 22, 20, "matrix" if column < BANKS else "frame"))
            parts += [rect(left, top, 5, 20, "a")] if column == 0 else []
            parts.append(text(left + 11, top + 14, (row * width + column) % BANKS, "small middle"))
    return parts + lines(x, 410, *words)


def picture():
    parts = [*requests(), text(24, 174, "Shared memory: each number's bank (8 banks here, a GPU has 32)", "title"),
             *tile(24, BANKS, "rows of 8 numbers", "A column lies in one bank:", "8 wavefronts."),
             *tile(290, BANKS + 1, "rows of 9 numbers, the last one unused", "A column lies in 8 banks:",
                   "1 wavefront.")]
    return document("Sectors and banks", 760, 446, parts)
