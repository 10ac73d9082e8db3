"""Figure of chapter 1: the numbers of a token after each layer of the forward pass."""
from svg import arrow, document, lines, rect, text

C, V, BAR, STEP, LEFT, MIDDLE, UNIT = 768, 50257, 30, 69, 30, 150, 26  # UNIT: pixels of C numbers
TENSORS = (("token", 0, ""), ("residual", 1, "Vp x C"), ("ln1", 1, ""), ("qkv", 3, "3C x C"), ("att", 1, ""),
           ("residual", 1, "C x C"), ("ln2", 1, ""), ("fc", 4, "4C x C"), ("gelu", 4, ""), ("residual", 1, "C x 4C"),
           ("lnf", 1, ""), ("logits", V / C, "Vp x C"))


def tensor(i, name, width, weights):
    """The row of a token as a bar. The bar of the logits would be ten times as high."""
    x, height = LEFT + STEP * i, max(min(width * UNIT, 6.5 * UNIT), 4)
    colour = "a" if name == "residual" else "c" if i == len(TENSORS) - 1 else "b"
    parts = [rect(x, MIDDLE - height / 2, BAR, height, colour),
             text(x + BAR // 2, 262, name, "small middle"),
             text(x + BAR // 2, 279, f"{round(width * C) or 1:,}", "small middle")]
    if i > 0:
        parts += [arrow(x + BAR - STEP + 4, MIDDLE, x - 4, MIDDLE), text(x + BAR // 2, 296, weights, "small middle")]
    return [*parts, f'<path class="paper" d="M{x - 4} 98l38 -10v8l-38 10Z"/>'] if width > 4 else parts


def picture():
    parts = [text(24, 32, "A token's numbers, layer by layer", "title"),
             *[part for i, row in enumerate(TENSORS) for part in tensor(i, *row)],
             rect(LEFT + 2 * STEP - 26, 56, 8 * STEP + 13, 190, "frame"),
             text(LEFT + 2 * STEP - 20, 72, "a block, 12 times", "small"),
             *lines(LEFT, 326, "Orange: the residual stream. It has C = 768 numbers before and after each block.",
                    "The last line has the weights that make a row. The head has those of the embedding.")]
    return document("The shapes of a forward pass", 860, 356, parts)
