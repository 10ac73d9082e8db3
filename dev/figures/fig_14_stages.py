"""Figure of chapter 14: copies and products of a block on an H100, with one stage and with two. A prediction."""
from svg import arrow, document, key, line, rect, text

ROWS, DEPTH, TILES = 128, 64, 5  # of a block's tile, its channels at a time, and how many of them are drawn
PEAK, FP32, L2 = 989.4, 66.9, 5120 / 132  # TFLOP/s (llmc/model/gpu_peak.h); bytes of the L2 cache in a clock
# In clocks of one of the 132 multiprocessors, whose threads do 256 operations in a clock.
COPY, MULTIPLY = 2 * ROWS * DEPTH * 2 / L2, 2 * ROWS * ROWS * DEPTH / (256 * PEAK / FP32)
X, SCALE = 110, 0.098


def timeline(y, title, stages):
    """A copy waits until its stage is free. A product waits for its copy."""
    copied, ends = 0.0, [0.0] * stages  # when the last copy and the products end; none has run in the stages at first
    parts = [text(24, y, title, "title"), text(24, y + 34, "copy"), text(24, y + 66, "multiply")]
    for i in range(TILES):
        copied = max(copied, ends[-stages]) + COPY
        ends.append(max(copied, ends[-1]) + MULTIPLY)
        for top, clocks, end, colour in ((16, COPY, copied, "ac"[i % stages]), (48, MULTIPLY, ends[-1], "b")):
            left = X + SCALE * (end - clocks)
            parts += [rect(round(left, 1), y + top, round(SCALE * clocks - 2, 1), 26, colour),
                      text(round(left + SCALE * clocks / 2 - 1), y + top + 18, i, "middle")]
    right = round(X + SCALE * ends[-1])
    return [*parts, line(right, y + 8, right, y + 80), text(right + 8, y + 50, f"{ends[-1]:,.0f} clocks")]


def picture():
    return document("Copies behind products", 900, 282, [
        *timeline(30, "One stage: a copy waits for the product before it", 1),
        *timeline(144, "Two stages: the next copy runs behind the product", 2), arrow(X, 240, X + 60, 240),
        text(X + 68, 245, "time"), *key(X + 120, 234, "a", f"copy to stage 0: {COPY:.0f} clocks"),
        *key(X + 330, 234, "c", "copy to stage 1"), *key(X + 480, 234, "b", f"product: {MULTIPLY:.0f} clocks")])
