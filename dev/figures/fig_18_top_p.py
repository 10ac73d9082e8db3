"""Figure of chapter 18: what top-p keeps at many temperatures, and of two distributions, beside top-k."""
from fig_18_generation import WEIGHTS, WORDS
from plots import HEIGHT, LEFT, TOP, WIDTH
from svg import axes, document, key, line, rect, text

TEMPERATURES, TOP_P, TOP_K = [n / 4 for n in range(1, 13)], 0.7, 4
SURE, UNSURE = 0.25, 0.85  # the probability of a token over that of the likelier one before it
RIGHT, TOKENS, HIGH = LEFT + 428, 12, 80


def shares(weights):
    """Probabilities, the likeliest first, each with whether top-p keeps it."""
    p = [weight / sum(weights) for weight in weights]
    return [(share, sum(p[:i]) < TOP_P) for i, share in enumerate(p)]


def temperatures():
    """Each bar is a distribution over five words, piled up from the likeliest."""
    parts, wide = [], WIDTH / len(TEMPERATURES)
    for i, temperature in enumerate(TEMPERATURES):
        bottom = TOP + HEIGHT
        for share, kept in shares([weight ** (1 / temperature) for weight in WEIGHTS]):
            bottom -= HEIGHT * share
            parts += [rect(round(LEFT + 4 + wide * i, 1), round(bottom + 1, 1), wide - 4, round(max(HEIGHT * share - 2, 0.5), 1), "c" if kept else "matrix")]
    cut = TOP + HEIGHT * (1 - TOP_P)
    return [*parts, line(LEFT, cut, LEFT + WIDTH, cut)]


def bars(y, words, ratio):
    parts, wide = [text(RIGHT, y - 8, words)], WIDTH / TOKENS
    for i, (share, kept) in enumerate(shares([ratio ** n for n in range(TOKENS)])):
        parts.append(rect(RIGHT + wide * i, round(y + HIGH * (1 - share), 1), wide - 4, round(max(HIGH * share, 1), 1), "c" if kept else "matrix"))
    return [*parts, line(RIGHT + wide * TOP_K - 2, y, RIGHT + wide * TOP_K - 2, y + HIGH)]


def picture():
    across = [((i + 0.5) / len(TEMPERATURES), f"{TEMPERATURES[i]:g}") for i in (1, 3, 7, 11)]
    parts = [text(20, 28, "Five words at many temperatures", "title"), *temperatures(),
             *axes(LEFT, TOP, WIDTH, HEIGHT, across, ((0, "0"), (TOP_P, f"{TOP_P}"), (1, "1"))),
             text(RIGHT, 28, "A sure model and one that is not", "title"),
             *bars(70, "sure", SURE), *bars(184, "not sure", UNSURE),
             *key(LEFT, 290, "c", f"kept by top-p {TOP_P}"), *key(LEFT + 190, 290, "matrix", "cut")]
    return document("What top-p keeps", 850, 316, parts)
