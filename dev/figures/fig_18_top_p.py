"""Figure of chapter 18: what top-p keeps at many temperatures, and what top-p and top-k keep of two distributions."""
from fig_18_generation import WEIGHTS
from plots import HEIGHT, LEFT, TOP, WIDTH
from svg import axes, document, key, line, rect, text

TOP_P, TOP_K, RIGHT, STEP = 0.7, 4, LEFT + 428, WIDTH / 12  # RIGHT: the second panel; STEP: from bar to bar


def bars(x, bottom, high, weights, across, piled):
    """Probabilities, the likeliest first: side by side or piled up. high: the pixels of a probability of 1."""
    parts, so_far = [], 0.0
    for i, share in enumerate(weight / sum(weights) for weight in weights):
        tall = max(high * share - 2, 1)
        parts.append(rect(round(x + across * i, 1), round(bottom - high * piled * so_far - tall, 1), 22,
                          round(tall, 1), "c" if so_far < TOP_P else "matrix"))
        so_far += share
    return parts


def picture():
    cut, k = TOP + HEIGHT * (1 - TOP_P), RIGHT + STEP * TOP_K - 3
    parts = [text(LEFT - 24, 28, "Five words, by temperature", "title"), text(RIGHT, 28, "Twelve tokens", "title"),
             *axes(LEFT, TOP, WIDTH, HEIGHT, [((4 * t - 0.5) / 12, f"{t:g}") for t in (0.5, 1, 2, 3)],
                   ((0, "0"), (TOP_P, f"{TOP_P}"), (1, "1"))), line(k, 68, k, 260)]
    for i in range(12):
        powers = [weight ** (4 / (i + 1)) for weight in WEIGHTS]
        parts += bars(LEFT + 4 + STEP * i, TOP + HEIGHT, HEIGHT, powers, 0, True)
    for bottom, words, ratio in ((148, "The model is sure.", 0.25), (260, "The model is not sure.", 0.85)):
        parts += [*bars(RIGHT, bottom, 100, [ratio ** n for n in range(12)], STEP, False),
                  text(k + 8, bottom - 24, words)]
    parts += [line(LEFT, cut, LEFT + WIDTH, cut), *key(LEFT, 290, "c", f"kept by top-p {TOP_P}"),
              *key(LEFT + 190, 290, "matrix", "cut by top-p"),
              text(RIGHT, 302, f"top-k {TOP_K} keeps those left of the line")]
    return document("What top-p keeps", 850, 316, parts)
