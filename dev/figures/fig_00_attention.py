"""Figure of chapter 0: where the letters of abracadabra look, and how the losses of the three models fall.

It trains the models of dev/exercises/00_basics/chapter.c, in the same way.
"""
import math

from svg import axes, curve, document, key, lines, path, rect, text

WORD = "abracadabra"
TEXT = ["abcdr".index(letter) for letter in WORD]
V, T, STEPS, COUNTED = 5, len(WORD) - 1, 1000, (2 * math.log(2) + 2 * math.log(4)) / 10
CELL, LEFT, TOP = 24, 60, 76


def softmax(scores):
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def step(tables, kind, rate=1.0):
    """A step of gradient descent. Returns the mean loss before it, and the weights of each position."""
    following, past, score = tables
    looks, loss, changes = [], 0.0, []
    for t, letter in enumerate(TEXT[:-1]):
        before = TEXT[:t + 1] if kind != "bigram" else []
        look = softmax([score[letter][other] if kind == "attention" else 0.0 for other in TEXT[:t + 1]])
        logits = [following[letter][i] + sum(w * past[other][i] for w, other in zip(look, before)) for i in range(V)]
        p = softmax(logits)
        loss -= math.log(p[TEXT[t + 1]]) / T
        d = [(p[i] - (i == TEXT[t + 1])) / T for i in range(V)]
        dlook = [sum(past[other][i] * d[i] for i in range(V)) for other in before]
        mean = sum(w * g for w, g in zip(look, dlook))
        changes += [(following[letter], i, d[i]) for i in range(V)]
        changes += [(past[other], i, w * d[i]) for w, other in zip(look, before) for i in range(V)]
        if kind == "attention":
            changes += [(score[letter], other, w * (g - mean)) for w, g, other in zip(look, dlook, before)]
        looks.append(look)
    for row, i, gradient in changes:
        row[i] -= rate * gradient
    return loss, looks


def train(kind):
    tables = [[[0.0] * V for _ in range(V)] for _ in range(3)]
    results = [step(tables, kind) for _ in range(STEPS + 1)]
    return [loss for loss, _ in results], results[-1][1]


def weights(x, title, looks):
    """A row for each position. A strong colour is a large weight."""
    parts = [text(x, TOP - 44, title, "title")]
    for t, look in enumerate(looks):
        parts += [text(x + CELL * t + 12, TOP - 8, WORD[t], "small middle"),
                  text(x - 8, TOP + CELL * t + 16, WORD[t], "small end")]
        for s, weight in enumerate(look):
            cell = (x + CELL * s, TOP + CELL * t, CELL - 2, CELL - 2)
            parts += [rect(*cell, "matrix"), f'<g opacity="{weight:.2f}">', rect(*cell, "a"), "</g>"]
    return parts


def losses(x, width, height, found):
    """The losses against the steps, both on scales where each mark is ten times the one before."""
    def place(at, loss):
        return x + width * math.log10(at + 1) / 3.05, TOP + height * (0.3 - math.log10(loss)) / 2.6
    across = [(i / 3.05, 10**i) for i in range(4)]
    up = [(1 - (0.3 + digits) / 2.6, 1 / 10**digits) for digits in range(3)]
    parts = [text(x - 30, TOP - 44, "Losses, step by step", "title"), *axes(x, TOP, width, height, across, up)]
    for (name, values), colour in zip(found.items(), "bca"):
        chosen = sorted({round(10**(i / 20)) - 1 for i in range(61)} | {STEPS})
        parts.append(curve([place(at, values[at]) for at in chosen], colour))
    floor = place(0, COUNTED)[1]
    return parts + [path([(x, floor), (x + width, floor)], ' stroke-dasharray="4 4"')]


def picture():
    trained = {kind: train(kind) for kind in ("bigram", "average", "attention")}
    found = {kind: values for kind, (values, _) in trained.items()}
    bottom = TOP + CELL * T + 30
    keys = [part for i, (kind, colour) in enumerate(zip(found, "bca"))
            for part in key(600, bottom + 20 + 20 * i, colour, f"{kind}: {found[kind][-1]:.4f}")]
    return document("Where letters look, and losses", 840, bottom + 90, [
        *weights(LEFT, "The average", trained["average"][1]),
        *weights(LEFT + 280, "Attention", trained["attention"][1]),
        *losses(640, 180, CELL * T, found), *keys,
        *lines(LEFT - 20, bottom + 32, "A row is a position. The stronger the orange, the more it looks there.",
               "An a looks at the letter that says where it stands: r, c or d.",
               "Dashed: what counting reaches.")])
