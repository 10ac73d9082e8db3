"""Figure of chapter 3: which numbers LayerNorm sums, forward and backward."""
from svg import arrow, document, lines, rect, text


def rows(x, y, count, width, name):
    return [rect(x, y + 24 * i, width, 20, name) for i in range(count)]


def panel(x, title, sums, column_sums):
    """A tensor (N, C) of 5 rows. The second row is at work."""
    parts = [text(x, 32, title, "title"), *rows(x, 60, 5, 200, "matrix"), rect(x, 84, 200, 20, "a"),
             arrow(x + 204, 94, x + 236, 94), rect(x + 240, 84, 20, 20, "b"), *lines(x + 268, 90, *sums)]
    if column_sums:
        parts += [rect(x + 96, 60, 20, 116, "c"), arrow(x + 106, 180, x + 106, 204), rect(x, 208, 200, 20, "matrix"),
                  rect(x + 96, 208, 20, 20, "c"), *lines(x + 212, 214, *column_sums)]
    return parts


def picture():
    parts = [*panel(24, "Forward: inp (N, C)", ("mean, rstd", "of the row"), ()),
             *panel(424, "Backward: dout (N, C)", ("mean(g), mean(g n)", "of the row"),
                    ("dweight, dbias (C):", "sums over all rows")),
             *lines(24, 204, "A row (orange) is normalised by two numbers (blue).", "Rows know nothing of each other.")]
    return document("The sums of LayerNorm", 840, 248, parts)
