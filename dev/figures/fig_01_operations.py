"""Figure of chapter 1: which layers the operations of a training step belong to, by the chapter's counts."""
from svg import document, key, rect, text

MODELS = (("124M, T = 1,024", 12, 768, 1024), ("1558M, T = 1,024", 48, 1600, 1024), ("124M, T = 8,192", 12, 768, 8192))
V, LEFT, WIDTH, TOP, STEP = 50257, 150, 660, 62, 44
PARTS = (("c", "MLP"), ("b", "q, k, v and the projection"), ("a", "attention"), ("matrix", "head"))


def operations(layers, channels, context):
    """Operations of a token, forward and backward: 6 for each weight, and those of attention."""
    square = 6 * layers * channels ** 2
    return 8 * square, 4 * square, 6 * layers * channels * context, 6 * V * channels


def picture():
    parts = [text(24, 32, "Where the operations of a step go", "title")]
    for i, (name, *sizes) in enumerate(MODELS):
        counts, x, y = operations(*sizes), LEFT, TOP + STEP * i
        parts += [text(LEFT - 10, y + 20, name, "end")]
        for count, (colour, _) in zip(counts, PARTS):
            width, share = WIDTH * count / sum(counts), f"{100 * count / sum(counts):.0f} %"
            parts += [rect(round(x, 1), y, round(width, 1), 28, colour),
                      text(round(x + width / 2), y + 19, share, "middle" if colour == "matrix" else "middle paper")]
            x += width
    for i, (colour, words) in enumerate(PARTS):
        parts += key(LEFT + (0, 80, 300, 410)[i], TOP + 3 * STEP + 4, colour, words)
    return document("Operations by layer", 840, TOP + 4 * STEP, parts)
