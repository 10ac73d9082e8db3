"""Figure of chapter 11: the small plan of its example, and the memory of GPT-2 124M in bf16 at each --recompute level.

The right panel: 8 x 1,024 tokens on a GPU, 18 bytes a parameter, and what the backward pass needs of the activations.
"""
from svg import document, line, rect, text

C, NH, L, N = 768, 12, 12, 8 * 1024
PARAMETERS = 124475904
SMALL = (  # name, first phase, last phase, offset, bytes, colour
    ("weights", 0, 2, 0, 512, "a"), ("x", 0, 1, 512, 256, "b"), ("logits", 0, 0, 768, 768, "c"),
    ("dx", 1, 1, 768, 512, "c"), ("norms", 2, 2, 512, 256, "b"))
PHASES = ("forward", "backward", "update")
TOP, HEIGHT, PHASE = 64, 192, 100


def small(x):
    parts = [text(x - 44, 28, "One plan: who lies where, and when", "title")]
    scale = HEIGHT / 1536
    for name, first, last, offset, size, colour in SMALL:
        left, wide = x + PHASE * first + 2, PHASE * (last - first + 1) - 4
        y, high = TOP + HEIGHT - scale * (offset + size), scale * size
        parts += [rect(left, round(y + 1, 1), wide, round(high - 2, 1), "matrix"),
                  rect(left, round(y + 1, 1), 5, round(high - 2, 1), colour),
                  text(left + wide / 2, round(y + high / 2 + 5, 1), name, "middle")]
    parts += [line(x, TOP - 8, x, TOP + HEIGHT), line(x, TOP + HEIGHT, x + 3 * PHASE, TOP + HEIGHT)]
    parts += [text(x - 6, round(TOP + HEIGHT - scale * at + 5, 1), str(at), "end") for at in (0, 512, 768, 1536)]
    return parts + [text(x + PHASE * (i + 0.5), TOP + HEIGHT + 20, name, "middle") for i, name in enumerate(PHASES)]


def kept(level):
    """GiB of the blocks' activations: the formula of the chapter, in bf16."""
    numbers = (16 * C, 12 * C, 10 * C, C)[level] * 2 + (4 * (NH + 4) if level < 3 else 0)
    return numbers * L * N / 2 ** 30


def levels(x):
    parts = [text(x, 28, "GPT-2 124M, 8 x 1,024 tokens, bf16", "title")]
    weights, scale = 18 * PARAMETERS / 2 ** 30, 74
    for level in range(4):
        y, most = TOP + 48 * level, weights + kept(level)
        parts += [text(x + 14, y + 22, f"-r {level}", "middle"), rect(x + 36, y, round(scale * weights, 1), 32, "a"),
                  rect(round(x + 36 + scale * weights, 1), y, round(scale * kept(level), 1), 32, "b"),
                  text(round(x + 42 + scale * most), y + 21, f"{most:.1f} GiB")]
    y = TOP + HEIGHT + 10
    return parts + [rect(x + 36, y, 12, 12, "a"), text(x + 54, y + 11, "18 bytes a parameter"),
                    rect(x + 216, y, 12, 12, "b"), text(x + 234, y + 11, "activations kept")]


def picture():
    return document("A small plan, and the levels of --recompute", 840, 292, [*small(68), *levels(412)])
