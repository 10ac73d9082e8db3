"""Figure of chapter 11: the small plan of its example, and the memory of GPT-2 124M in bf16 at each --recompute level.

The right panel: 8 x 1,024 tokens on a GPU. TOTALS is what `train_gpt2emu --plan all` prints for the four levels.
"""
from svg import bar, document, key, line, rect, text

C, NH, L, N = 768, 12, 12, 8 * 1024
PARAMETERS = 124475904
LOGITS = 50304 * 2 * N                                     # bytes of all rows of this batch
TOTALS = (5588476160, 5034828032, 4758003968, 3506528512)  # bytes of the whole plan
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
    weights, logits = 18 * PARAMETERS / 2 ** 30, LOGITS / 2 ** 30
    for level, total in enumerate(TOTALS):
        y, rest = TOP + 6 + 46 * level, total / 2 ** 30 - weights - kept(level) - logits
        sizes = ((weights, "a"), (kept(level), "b"), (logits, "c"), (rest, "matrix"))
        parts += [text(x + 14, y + 15, f"-r {level}", "middle"),
                  *bar(x + 36, y, 61, sizes, f"{total / 2 ** 30:.2f} GiB")]
    y = TOP + HEIGHT + 4
    return [*parts, *key(x + 36, y, "a", "18 bytes a parameter"), *key(x + 216, y, "b", "kept for the backward"),
            *key(x + 36, y + 22, "c", "logits"), *key(x + 216, y + 22, "matrix", "the rest")]


def picture():
    return document("A small plan, and the levels of --recompute", 840, 300, [*small(68), *levels(412)])
