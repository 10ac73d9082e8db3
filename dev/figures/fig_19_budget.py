"""Figure of chapter 19: parameters and tokens of the recipes, and what 8 H100 can train: 6 N D FLOPs, predicted MFU."""
from math import log10

from plots import HEIGHT, TOP, WIDTH, place, trail
from svg import axes, bar, curve, document, key, text

FLOPS = 8 * 0.44 * 989.4e12  # a second
V, T, BEST, LEFT, RIGHT = 50257, 1024, 20, 52, 480  # BEST: tokens for each parameter, by Hoffmann and others
# Layers, channels, steps, tokens of a step (scripts/run_gpt2_*.sh), and how far below its dot a name stands.
RECIPES = (("124M", 12, 768, 18865, 2 ** 19, 22), ("350M", 24, 1024, 60000, 2 ** 19, -12),
           ("774M", 36, 1280, 286102, 2 ** 19, -12), ("1558M", 48, 1600, 32000, 2 ** 20, -12))
MODELS = (7.9, 9.4)  # powers of ten of the parameters; those of the tokens are 9 to 12
to_pixels = place(LEFT, MODELS, (9, 12))


def straight(tokens, colour, words):
    """The part of a line that the panel has. tokens: those for 10^n parameters, as a power of ten."""
    points = [(n / 100, tokens(n / 100)) for n in range(round(100 * MODELS[0]), round(100 * MODELS[1]) + 1)]
    points = [to_pixels(point) for point in points if 9 <= point[1] <= 12]
    return [curve(points, colour), text(round(points[-1][0]) + 6, round(points[-1][1]) - 4, words)]


def picture():
    parts = [text(LEFT - 24, 28, "Billion tokens of a run, by parameters", "title"),
             *axes(LEFT, TOP, WIDTH, HEIGHT, ((0.1 / 1.5, "100 million"), (1.1 / 1.5, "1 billion")),
                   [(n / 3, f"{10 ** n:,}") for n in range(4)]),
             *straight(lambda n: n + log10(BEST), "c", "best"),
             text(RIGHT, 28, "Tokens for each parameter", "title")]
    for words, hours in (("1 hour", 1), ("1 day", 24), ("1 week", 168)):
        parts += straight(lambda n, hours=hours: log10(FLOPS * 3600 * hours / 6) - n, "matrix", words)
    for i, (name, L, C, steps, batch, below) in enumerate(RECIPES):
        N, D = 12 * L * C * C + 13 * L * C + (V + T + 2) * C, steps * batch
        x, y = to_pixels((log10(N), log10(D)))
        parts += [*trail([(x, y)], "a", 5), text(round(x), round(y) + below, name, "middle"),
                  text(RIGHT, 80 + 40 * i, name), *bar(RIGHT + 60, 65 + 40 * i, 1, ((D / N, "a"),), f"{D / N:.1f}")]
    parts += [*bar(RIGHT + 60, 225, 1, ((BEST, "c"),), str(BEST)), text(RIGHT, 240, "best"),
              *key(LEFT, 290, "a", "recipes"), *key(LEFT + 100, 290, "c", f"{BEST} tokens for each parameter"),
              *key(LEFT + 330, 290, "matrix", "what 8 H100 train in a time")]
    return document("The budget of a run", 850, 316, parts)
