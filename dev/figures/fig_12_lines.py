"""Figure of chapter 12: which lines of B three steps touch on the small machine, and which come from memory."""
from svg import document, key, lines, rect, text

SIZE, LINE, LINES, SHOWN = 32, 16, 24, 128  # of chapter.c: the matrices, the cache; the visits that are drawn
TOP, ACROSS, DOWN = 84, 1.9, 3
ALL = range(SIZE)
ORDERS = (  # name, what a visit uses, the (i, j, k) of the multiply-adds in order
    ("1 naive", "1 number", [(i, j, k) for i in ALL for j in ALL for k in ALL]),
    ("2 loop order", "16 numbers", [(i, j, k) for i in ALL for k in ALL for j in ALL]),
    ("3 blocks", "16 numbers", [(i, j, 8 * b + k) for b in range(4) for i in ALL for k in range(8) for j in ALL]))


def visits(multiply_adds):
    """Lines of B, and whether each comes from memory. A visit ends when another line of B is used."""
    cache, found, last = {}, [], None  # the line that was used longest ago is the first of a dict
    for i, j, k in multiply_adds:
        for matrix, row, column in ((0, i, k), (1, k, j), (2, i, j)):
            line = (matrix * SIZE + row) * SIZE // LINE + column // LINE
            missed = line not in cache
            cache.pop(line, None)
            cache[line] = True
            if len(cache) > LINES:
                cache.pop(next(iter(cache)))
            if matrix == 1 and line != last:
                last = line
                found.append((line - SIZE * SIZE // LINE, missed))
    return found


def picture():
    parts = [*key(24, 20, "a", "a line of B comes from memory"), *key(304, 20, "b", "it lies in the cache"),
             text(584, 32, f"{SHOWN} visits from left to right")]
    for x, (name, words, multiply_adds) in zip((24, 304, 584), ORDERS):
        found = visits(multiply_adds)
        for colour, missed in (("a", True), ("b", False)):
            squares = "".join(f"M{x + ACROSS * at:.1f} {TOP + DOWN * line}h3v4h-3z"
                              for at, (line, new) in enumerate(found[:SHOWN]) if new == missed)
            parts += [f'<path class="{colour}" d="{squares}"/>'] if squares else []
        misses = sum(missed for _, missed in found)
        parts += [text(x, TOP - 16, name, "title"), rect(x - 4, TOP - 4, 252, DOWN * 64 + 8, "frame"),
                  *lines(x, TOP + DOWN * 64 + 26, f"A visit uses {words}.", f"In all {misses:,} lines from memory.")]
    return document("The lines of B that three loops touch", 860, TOP + DOWN * 64 + 56, parts)
