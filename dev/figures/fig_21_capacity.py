"""Figure of chapter 21: the tokens that experts drop, and the slots that stay empty, by capacity. Each token draws an
expert, so the tokens of an expert have a binomial distribution.
"""
from math import exp, lgamma, log

from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, curve, document, key, text

TOKENS, EXPERTS = 1024, 8
CAPACITIES = range(TOKENS // EXPERTS, 5 * TOKENS // EXPERTS // 2 + 1, 4)


def chances(share):
    """The probability of each number of tokens, for an expert that a token draws with this probability."""
    ways = [lgamma(TOKENS + 1) - lgamma(n + 1) - lgamma(TOKENS - n + 1) for n in range(TOKENS + 1)]
    return [exp(way + n * log(share) + (TOKENS - n) * log(1 - share)) for n, way in enumerate(ways)]


def panel(x, title, shares):
    """shares: of each expert."""
    experts = [(chances(share), shares.count(share)) for share in set(shares)]
    to_pixels, dropped, empty = place(x, (1, 2.5), (0, 0.6)), [], []
    for capacity in CAPACITIES:
        kept = sum(many * sum(p * min(n, capacity) for n, p in enumerate(chance)) for chance, many in experts)
        size = capacity * EXPERTS / TOKENS
        dropped.append(to_pixels((size, 1 - kept / TOKENS)))
        empty.append(to_pixels((size, 1 - kept / (capacity * EXPERTS))))
    return [text(x - 24, 28, title, "title"), curve(dropped, "a"), curve(empty, "b"),
            *axes(x, TOP, WIDTH, HEIGHT, ((0, "1"), (1 / 3, "1.5"), (2 / 3, "2 equal shares"), (1, "2.5")),
                  [(n / 3, f"{20 * n} %") for n in range(4)])]


def picture():
    parts = [*panel(LEFT, "A router in balance", [1 / 8] * 8),
             *panel(LEFT + 428, "One expert is drawn twice as often", [2 / 9] + [1 / 9] * 7),
             *key(LEFT, 290, "a", "tokens that are dropped"), *key(LEFT + 220, 290, "b", "slots that stay empty")]
    return document("Tokens dropped and slots empty, by capacity", 850, 316, parts)
