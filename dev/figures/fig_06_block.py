"""Figure of chapter 6: the two sublayers of a block beside the residual stream."""
from svg import arrow, document, line, lines, rect, text

STREAM, TOP, WIDTH, GAP = 190, 84, 58, 6
SUBLAYERS = (("ln1 C", "qkv 3C", "attention C", "attproj C"), ("ln2 C", "fc 4C", "gelu 4C", "fcproj C"))


def sublayer(x, names, weights):
    """A sublayer: up from the stream, through four boxes, down to the sum."""
    end = x + 20 + 4 * (WIDTH + GAP) + 14
    parts = [line(x, STREAM, x, TOP + 22), arrow(x, TOP + 22, x + 18, TOP + 22)]
    for i, name in enumerate(names):
        label, columns = name.split()
        left = x + 20 + i * (WIDTH + GAP)
        parts += [rect(left, TOP, WIDTH, 44, "matrix"), text(left + WIDTH // 2, TOP + 19, label, "small middle"),
                  text(left + WIDTH // 2, TOP + 36, columns, "small middle")]
    return [*parts, line(end - 16, TOP + 22, end, TOP + 22), arrow(end, TOP + 22, end, STREAM - 8),
            text(end - 18, STREAM - 12, "+"), text(x + 20, TOP - 12, weights, "small")]


def picture():
    parts = [text(24, 32, "A block", "title"), *sublayer(44, SUBLAYERS[0], "weights: 3 C C and C C"),
             *sublayer(352, SUBLAYERS[1], "weights: 4 C C and 4 C C"),
             f'<rect class="a" x="24" y="{STREAM - 3}" width="640" height="6"/>',
             *lines(24, STREAM + 28, "The residual stream, C numbers a token: each sublayer reads it and adds to it.",
                    "Backward: the gradient of the stream passes each sublayer unchanged, and each adds its own.")]
    return document("A block of GPT-2", 690, 252, parts)
