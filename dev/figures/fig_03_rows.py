"""Figure of chapter 3: rows of numbers before and after LayerNorm."""
import random
import statistics

from svg import axes, document, key, rect, text

ROWS, CHANNELS, TOP, STEP, WIDTH = 6, 48, 58, 26, 350


def panel(x, title, rows, most):
    """A row of dots for each row of numbers, from -most to most, with its mean and its standard deviation."""
    scale = WIDTH / 2 / most
    ticks = ((0, f"{-most}"), (0.5, "0"), (1, f"{most}"))
    parts = [text(x, 32, title, "title"), *axes(x, TOP, WIDTH, ROWS * STEP, ticks, ())]
    for i, row in enumerate(rows):
        y, mean, deviation = TOP + STEP * i + 8, statistics.fmean(row), statistics.pstdev(row)
        middle = x + WIDTH / 2 + scale * mean
        parts += [rect(round(middle - scale * deviation, 1), y + 6, round(2 * scale * deviation, 1), 4, "a"),
                  rect(round(middle - 1, 1), y - 6, 2, 18, "c")]
        parts += [f'<circle class="b" cx="{x + WIDTH / 2 + scale * number:.1f}" cy="{y}" r="2.5"/>' for number in row]
    return parts


def picture():
    draw = random.Random(4)
    shapes = [(draw.uniform(-6, 6), draw.choice((0.4, 1, 2))) for _ in range(ROWS)]
    rows = [[draw.gauss(*shape) for _ in range(CHANNELS)] for shape in shapes]
    normalised = [[(number - statistics.fmean(row)) / statistics.pstdev(row) for number in row] for row in rows]
    parts = [*panel(30, "Before: six rows of 48 channels", rows, 12),
             *panel(450, "After: mean 0, standard deviation 1", normalised, 4)]
    for x, colour, words in ((30, "b", "a number of the row"), (220, "c", "the mean"),
                             (330, "a", "the standard deviation, to both sides")):
        parts += key(x, TOP + ROWS * STEP + 36, colour, words)
    return document("Rows before and after LayerNorm", 840, TOP + ROWS * STEP + 64, parts)
