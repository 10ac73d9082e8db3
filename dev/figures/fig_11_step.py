"""Figure of chapter 11: the memory that is in use during a step of GPT-2 124M, 8 x 1,024 tokens, at two levels of
--recompute. Each bar is a layer: forward, the head, and backward.
"""
from fig_11_memory import LOGITS, L, PARAMETERS, kept
from plots import HEIGHT, LEFT, TOP, WIDTH
from svg import axes, document, key, rect, text

GIB, BAR = 2 ** 30, 12
STATE, MOST = 18 * PARAMETERS / GIB, 5.6
BLOCK = kept(0) / L  # GiB of one block with all its activations


def panel(x, level):
    parts = [text(x, 28, f"In use during a step: --recompute {level}", "title")]
    one = kept(level) / L
    in_use = [(one * layer, BLOCK - one, 0) for layer in range(1, L + 1)]
    in_use += [(one * L, BLOCK - one, LOGITS / GIB), *reversed(in_use), (0, 0, 0)]
    for i, (held, again, logits) in enumerate(in_use):
        y, at = TOP + HEIGHT, x + 2 + BAR * i
        for size, colour in ((STATE, "matrix"), (held, "b"), (again, "a"), (logits, "c")):
            high = HEIGHT * size / MOST
            y -= high
            parts += [rect(at, round(y, 1), BAR - 2, round(high, 1), colour)] if size else []
    peak = STATE + max(sum(sizes) for sizes in in_use)
    parts.append(text(x + BAR * (L + 2), TOP + 12, f"{peak:.1f} GiB, without scratch"))
    across = ((6 / 27, "forward"), (12.5 / 27, "head"), (19 / 27, "backward"), (26.5 / 27, "update"))
    return [*parts, *axes(x, TOP, WIDTH, HEIGHT, [(at * 27 * BAR / WIDTH, words) for at, words in across],
                          [(n / MOST, str(n)) for n in range(0, 6)])]


def picture():
    names = ("matrix", "18 bytes a parameter", 0), ("b", "kept for the backward", 190), \
            ("a", "one block, computed again", 380), ("c", "logits", 600)
    keys = [part for colour, name, across in names for part in key(LEFT + across, 290, colour, name)]
    return document("The memory in use during a step", 840, 316, [*panel(LEFT, 0), *panel(LEFT + 428, 3), *keys])
