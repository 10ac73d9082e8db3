"""Figure of chapter 10: the bits of the formats, what they reach, and how far apart their numbers are at 1."""
from svg import document, key, rect, text

BIT, LEFT, TOP, APART = 14, 80, 62, 44
FORMATS = (  # name, bits of exponent and mantissa; the largest number, the smallest normal and subnormal one, the
    # distance of the numbers from 1 to 2
    ("fp32", 8, 23, "3.4e38", "1.2e-38", "1.4e-45", "2^-23"),
    ("bf16", 8, 7, "3.4e38", "1.2e-38", "9.2e-41", "2^-7"),
    ("e5m2", 5, 2, "57,344", "6.1e-5", "1.5e-5", "2^-2"),
    ("e4m3", 4, 3, "448", "0.016", "0.002", "2^-3"))


def picture():
    columns = [LEFT + 32 * BIT + right for right in (52, 166, 246, 320)]
    parts = [text(24, 28, "What the bits are for", "title")]
    for x, words in zip(columns, ("largest", "smallest normal", "subnormal", "apart at 1")):
        parts.append(text(x, 48, words, "end"))
    for i, (name, exponent, mantissa, *facts) in enumerate(FORMATS):
        y = TOP + APART * i
        parts.append(text(LEFT - 12, y + 18, name, "end"))
        for bit in range(1 + exponent + mantissa):
            colour = "c" if bit == 0 else "a" if bit <= exponent else "b"
            parts.append(rect(LEFT + BIT * bit, y, BIT - 2, 26, colour))
        parts += [text(x, y + 18, words, "end") for x, words in zip(columns, facts)]
    y = TOP + APART * len(FORMATS) + 2
    for x, colour, words in ((LEFT, "c", "sign"), (LEFT + 84, "a", "exponent: how far the numbers reach"),
                             (LEFT + 376, "b", "mantissa: how close they lie")):
        parts += key(x, y, colour, words)
    return document("The bits of fp32, bf16, e5m2 and e4m3", 860, TOP + APART * len(FORMATS) + 30, parts)
