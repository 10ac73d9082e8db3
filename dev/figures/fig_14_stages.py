"""Figure of chapter 14: copies and products of a block on an H100, with one stage and with two. A prediction."""
from svg import arrow, document, key, line, rect, text

ROWS, DEPTH, TILES = 128, 64, 5  # of a block's tile, its channels at a time, and how many of them are drawn
PEAK, FP32, L2 = 989.4, 66.9, 5120 / 132  # TFLOP/s (llmc/model/gpu_peak.h); bytes of the L2 cache in a clock
# In clocks of one of the 132 multiprocessors, whose threads do 256 operations in a clock.
COPY, MULTIPLY = 2 * ROWS * DEPTH * 2 / L2, 2 * ROWS * ROWS * DEPTH / (256 * PEAK / FP32)
X, SCALE = 110, 0.098


def schedule(stages):
    """For each tile: when its copy and its product begin. A copy waits until its stage is free."""
    copies, products, copied, done = [], [], 0.0, 0.0
    for i in range(TILES):
        begin = max(copied, products[i - stages] + MULTIPLY if i >= stages else 0.0)
        copied = begin + COPY
        done = max(copied, done)
        copies.append(begin)
        products.append(done)
        done += MULTIPLY
    return copies, products


def timeline(y, title, stages):
    copies, products = schedule(stages)
    end = X + SCALE * (products[-1] + MULTIPLY)
    parts = [text(24, y, title, "title"), text(24, y + 34, "copy"), text(24, y + 66, "multiply")]
    for i, (copy, product) in enumerate(zip(copies, products)):
        for top, start, clocks, colour in ((16, copy, COPY, "ac"[i % stages]), (48, product, MULTIPLY, "b")):
            left = X + SCALE * start
            parts += [rect(round(left, 1), y + top, round(SCALE * clocks - 2, 1), 26, colour),
                      text(round(left + SCALE * clocks / 2 - 1), y + top + 18, i, "middle")]
    return [*parts, line(round(end), y + 8, round(end), y + 80),
            text(round(end) + 8, y + 50, f"{products[-1] + MULTIPLY:,.0f} clocks")]


def picture():
    return document("Copies behind products", 900, 282, [
        *timeline(30, "One stage: a copy waits for the product before it", 1),
        *timeline(144, "Two stages: the next copy runs behind the product", 2), arrow(X, 240, X + 60, 240),
        text(X + 68, 245, "time"), *key(X + 120, 234, "a", f"copy to stage 0: {COPY:.0f} clocks"),
        *key(X + 330, 234, "c", "copy to stage 1"), *key(X + 480, 234, "b", f"product: {MULTIPLY:.0f} clocks")])
