"""Figure of chapter 16: the memory and the predicted times of a rank, by the chapter's formulas, for 1 to 512 ranks."""
from math import log2, log10

from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, curve, document, key, text

STAGES = (("matrix", lambda ranks: 18), ("a", lambda ranks: 6 + 12 / ranks), ("b", lambda ranks: 2 + 16 / ranks),
          ("c", lambda ranks: 18 / ranks))
PARAMETERS, LINK, COMPUTES = 124478976, 360e9, 8 * 121  # bytes a second of a GPU; ms on one rank: 8 ranks take 121
TIMES = (("b", "computing", lambda ranks: COMPUTES / ranks),
         ("matrix", "sending, stage 0", lambda ranks: sends(ranks, 8)),
         ("a", "sending, stage 1", lambda ranks: sends(ranks, 6)))
RIGHT = LEFT + 428  # the second panel


def sends(ranks, width):
    """ms for so many bytes of each parameter."""
    return width * (ranks - 1) / ranks * PARAMETERS / LINK * 1e3


def curves(to_pixels, first, last, series):
    """From 2^first to 2^last ranks. series: (colour, function of the number of ranks)."""
    ranks = [2 ** (i / 8) for i in range(8 * first, 8 * last + 1)]
    return [curve([to_pixels((log2(n), function(n))) for n in ranks], colour) for colour, function in series]


def picture():
    ms = [(colour, lambda ranks, time=time: log10(time(ranks))) for colour, _, time in TIMES]
    parts = [text(LEFT - 24, 28, "Bytes of a parameter on a rank", "title"),
             *axes(LEFT, TOP, WIDTH, HEIGHT, ((0, "1"), (0.5, "8 ranks"), (1, "64")),
                   [(n / 20, str(n)) for n in (0, 6, 12, 18)]),
             *curves(place(LEFT, (0, 6), (0, 20)), 0, 6, STAGES),
             text(RIGHT - 24, 28, "Milliseconds of a step", "title"),
             *axes(RIGHT, TOP, WIDTH, HEIGHT, ((0, "1"), (1 / 3, "8 ranks"), (2 / 3, "64"), (1, "512")),
                   [(power / 3, f"{10 ** power:,}") for power in range(4)]),
             *curves(place(RIGHT, (0, 9), (0, 3)), 1, 9, ms)]
    keys = [(LEFT + 92 * stage, colour, f"stage {stage}") for stage, (colour, _) in enumerate(STAGES)]
    for x, colour, words in keys + [(RIGHT + x, *time[:2]) for x, time in zip((0, 100, 240), TIMES)]:
        parts += key(x, 290, colour, words)
    return document("The memory of a rank, and the time of a step", 850, 316, parts)
