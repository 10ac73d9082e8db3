"""Figure of chapter 10: how large the error of a rounded number can be, for numbers of all sizes, in four formats."""
import math

from svg import axes, curve, document, line, lines, path, text

X, Y, WIDTH, HEIGHT = 80, 62, 500, 220
LEAST, MOST, FINEST = -30, 18, -12  # powers of two: the axes
FORMATS = (  # name, bits of mantissa, smallest normal exponent, largest number, colour, where its name stands
    ("bf16", 7, -126, 3.4e38, "b", -28, -8), ("fp16", 10, -14, 65504, "c", -9, -8), ("e4m3", 3, -6, 448, "a", 3, 17),
    ("e5m2", 2, -14, 57344, "", 3, -8))


def place(power, error):
    return X + WIDTH * (power - LEAST) / (MOST - LEAST), Y + HEIGHT * error / FINEST


def error(power, mantissa, least):
    """The largest error of a number near 2^power, as a part of it: half the distance of neighbours. A power of two."""
    return min(0, max(power, least) - mantissa - 1 - power)


def picture():
    ticks = [(1 - math.log2(part) / FINEST, words) for part, words in
             ((1, "100 %"), (0.1, "10 %"), (0.01, "1 %"), (0.001, "0.1 %"))]
    parts = [text(24, 28, "The largest error of a rounding", "title"),
             *axes(X, Y, WIDTH, HEIGHT,
                   [((power - LEAST) / (MOST - LEAST), f"2^{power}") for power in range(LEAST, MOST, 10)], ticks)]
    for name, mantissa, least, most, colour, at, below in FORMATS:
        powers = max(LEAST, least - mantissa - 1), least, min(math.log2(most), MOST)
        points = [place(power, error(power, mantissa, least)) for power in powers if power >= LEAST]
        parts += [curve(points, colour, 3) if colour else path(points),
                  text(round(place(at, 0)[0]), round(place(at, -mantissa - 1)[1] + below), name)]
    dloss = place(-19, 0)[0]
    return document("The largest error of a rounding", 840, Y + HEIGHT + 56, [
        *parts, line(round(dloss, 1), Y - 8, round(dloss, 1), Y + HEIGHT),
        text(round(dloss + 6), Y + HEIGHT - 8, "dloss"),
        text(X + WIDTH / 2, Y + HEIGHT + 42, "size of the number", "middle"),
        *lines(610, 90, "Level: the bits of mantissa.", "", "Rising to the left: subnormal",
               "numbers, whose bits run out.", "", "At 100 % a number becomes 0.", "",
               "At its right end a format has", "no larger number.")])
