"""Figure of chapter 18: the rows that each new token computes, with and without a cache, and how a draw is shaped."""
from svg import document, key, rect, text

CELL, TOKENS, BAR = 24, 7, 120
WORDS, WEIGHTS = ("sat", "ran", "is", "was", "fog"), (8, 4, 2, 1, 1)  # the logits are the logarithms of the weights
DRAWS = (("temperature 1", 1.0, 1.0), ("temperature 1/2", 0.5, 1.0), ("temperature 2", 2.0, 1.0),
         ("top-p 0.7", 1.0, 0.7))


def triangle(x, y, title, cached):
    """A row for each new token. A cell is a position that the model looks at."""
    parts = [text(x, y - 12, title)]
    for new in range(TOKENS):
        for position in range(new + 1):
            name = "a" if position == new or not cached else "b"
            parts.append(rect(x + CELL * position, y + CELL * new, CELL - 2, CELL - 2, name))
    return parts


def probabilities(temperature, top_p):
    powers = [weight ** (1 / temperature) for weight in WEIGHTS]
    kept, so_far = [], 0.0
    for power in powers:  # the likeliest first
        kept.append(power if so_far < top_p * sum(powers) else 0.0)
        so_far += power
    return [power / sum(kept) for power in kept]


def bars(x, y, title, p):
    parts = [text(x, y - 12, title)]
    for i, (word, share) in enumerate(zip(WORDS, p)):
        parts += [text(x, y + 11 + 19 * i, word, "small"),
                  rect(x + 26, y + 19 * i, max(1, round(BAR * share)), 14, "c" if share else "matrix"),
                  text(x + 32 + round(BAR * share), y + 11 + 19 * i, f"{share:.2f}", "small")]
    return parts


def picture():
    parts = [text(20, 30, "Positions that each new token computes", "title"),
             *triangle(20, 74, "without a cache: 28", False), *triangle(216, 74, "with a cache: 7", True),
             *key(20, 258, "a", "goes through the whole model"), *key(20, 282, "b", "keys and values from the cache"),
             text(450, 30, "What the next token is drawn from", "title")]
    for i, (title, temperature, top_p) in enumerate(DRAWS):
        parts += bars(450 + 190 * (i % 2), 74 + 128 * (i // 2), title, probabilities(temperature, top_p))
    return document("A cache of keys and values, and four ways to draw", 840, 310, parts)
