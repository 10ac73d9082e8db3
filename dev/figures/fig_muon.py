"""Figure of doc/muon.md: what Muon's rounds do to a singular value.

    python3 dev/figures/fig_muon.py    prints the numbers of the chapter's example
"""
import math

from svg import axes, curve, document, text

A, B, C = 3.4445, -4.7750, 2.0315  # of llmc/model/muon.h
ROUNDS = 5
LEFT, TOP, WIDTH, HEIGHT = 44, 56, 330, 190
HIGHEST = 1.3  # of the axes


def round_of_muon(s):
    return A * s + B * s ** 3 + C * s ** 5


def cubic_round(s):
    return 1.5 * s - 0.5 * s ** 3


def after(s, rounds, one_round=round_of_muon):
    for _ in range(rounds):
        s = one_round(s)
    return s


def panel(x, title, labels):
    """Axes: a singular value before, to the right, and after some rounds, upwards. labels: (0 to 1, words)."""
    one = TOP + HEIGHT * (1 - 1 / HIGHEST)
    return [text(x, 28, title, "title"), *axes(x, TOP, WIDTH, HEIGHT, labels, ((0, "0"), (1 / HIGHEST, "1"))),
            f'<path class="grid" d="M{x} {one:.1f}H{x + WIDTH}"/>']


def plot(x, function, argument, name):
    """function(argument(at)) for at = 0 to 1, over the width of a panel."""
    points = [(at / 400, function(argument(at / 400))) for at in range(401)]
    return curve([(x + WIDTH * at, TOP + HEIGHT * (1 - y / HIGHEST)) for at, y in points], name)


def picture():
    right = LEFT + 428
    parts = [*panel(LEFT, "A singular value after one round", ((0, "0"), (0.5, "0.5"), (1, "1"))),
             plot(LEFT, cubic_round, lambda at: at, "c"), plot(LEFT, round_of_muon, lambda at: at, "a"),
             text(LEFT + 132, TOP + 8, "Muon's polynomial"), text(LEFT + 178, TOP + 106, "1.5 s - 0.5 s^3"),
             *panel(right, "After five rounds", ((0, "0.001"), (1 / 3, "0.01"), (2 / 3, "0.1"), (1, "1"))),
             plot(right, lambda s: after(s, ROUNDS, cubic_round), lambda at: 10 ** (3 * at - 3), "c"),
             plot(right, lambda s: after(s, ROUNDS), lambda at: 10 ** (3 * at - 3), "a"),
             text(right + 92, TOP + 8, "Muon's polynomial"), text(right + 210, TOP + 134, "1.5 s - 0.5 s^3")]
    return document("What Muon's rounds do to a singular value", 840, 286, parts)


def example():
    """N has the rows (5.5, 4.5) and (4.5, 5.5). It has the singular values 10 and 1."""
    norm = math.sqrt(10 ** 2 + 1 ** 2)
    print("round        s1        s2    X: first row         second row")
    for rounds in range(ROUNDS + 1):
        s1, s2 = after(10 / norm, rounds), after(1 / norm, rounds)
        same, other = (s1 + s2) / 2, (s1 - s2) / 2  # of the singular vectors (1, 1) and (1, -1), over sqrt(2)
        print(f"{rounds:5}{s1:10.4f}{s2:10.4f} {same:10.4f}{other:10.4f} {other:10.4f}{same:10.4f}")


def flops():
    """Of the rounds for GPT-2 124M, and of its shapes."""
    C, L = 768, 12
    shapes = ((C, C, 4 * L), (4 * C, C, L), (C, 4 * C, L))  # q, k, v and attproj; fc; fcproj
    total = 0
    print("\nmatrices      rows   columns     GFLOP each     GFLOP")
    for rows, columns, count in shapes:
        n, m = min(rows, columns), max(rows, columns)
        each = ROUNDS * (4 * n * n * m + 2 * n ** 3)
        total += count * each
        print(f"{count:8}{rows:10}{columns:10}{each / 1e9:15.2f}{count * each / 1e9:10.1f}")
    print(f"all{total / 1e9:50.1f}")


if __name__ == "__main__":
    example()
    flops()
