"""Figure of chapter 5: what three heads of a small model look at. attention_maps.py printed the digits."""
import math

from svg import document, lines, rect, text

TEXT = "the tokens of the text"
HEADS = (
    ("Layer 1, head 3", "looks at the letter before",
     "9812710261003600002510001421000002610000001610000000251000000002420000000002610000000000260000000000"
     "0034100000000000026100000000000003410000000000000016100000000000000025100000000000000003510000000000"
     "00000003510000000000000000002510000000000000000000441"),
    ("Layer 1, head 1", "averages a word or two",
     "9454317011213121311121221111210121110102221101102121001100012100300201001111111011111101111000001000"
     "2013010111100111011110000100010120011100000001001012000000000020130000000111000111001100000100000000"
     "00001300100000010000111001011011000100000000010011000"),
    ("Layer 2, head 2", "picks a few letters",
     "9721074320204200101060044001001303010041010300020000600111010111300002010200110000010000062110010101"
     "3000000110015100100000100013110110000000010100051000011001010110000010000100013100000001000100210000"
     "00011000100110001002000001100000010000100000000300100"))
CELL, TOP, STEP = 11, 88, 276


def head(x, title, words, digits):
    """A map: a row for each query, a column for each key, and the darker the larger p."""
    stairs = "".join(f"h{CELL}v{CELL}" for _ in TEXT)
    parts = [text(x, 32, title, "title"), text(x, 54, words),
             f'<path class="matrix" d="M{x} {TOP}{stairs}H{x}Z"/>']
    for i, letter in enumerate(TEXT):
        y = TOP + CELL * i
        parts += [text(x - 6, y + 9, letter, "small end"),
                  text(x + CELL * i + CELL / 2, TOP - 6, letter, "small middle")]
        for j in range(i + 1):
            p = int(digits[i * (i + 1) // 2 + j]) / 9
            if p > 0:
                cell = rect(x + CELL * j, y, CELL, CELL, "b")
                parts.append(cell.replace("/>", f' fill-opacity="{math.sqrt(p):.2f}"/>'))
    return parts


def picture():
    parts = [part for i, (title, words, digits) in enumerate(HEADS)
             for part in head(34 + STEP * i, title, words, digits)]
    parts += lines(34, TOP + CELL * len(TEXT) + 28,
                   "A row is a query, a column a key. The stronger the colour, the larger is p.")
    return document("What three heads look at", 34 + STEP * 3, TOP + CELL * len(TEXT) + 46, parts)
