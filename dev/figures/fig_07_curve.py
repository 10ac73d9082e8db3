"""Figure of chapter 7: how the loss of two tokens pushes their logits, and the loss of a run beside three guesses."""
from plots import LEFT, RUNS, WIDTH, losses, place
from svg import arrow, document, key, rect, text

TOKENS = (((1, 2, 5), 2), ((3, 1, 4), 1))  # the exponentials of the example's logits, and the target
BASE, UNIT, BAR = 196, 130, 34
UPDATES = 600
GUESSES = (("alike", "all bytes are equally likely"), ("counts", "by how often each byte occurs"),
           ("pairs", "by the byte before"))
RUNS_SHOWN = (("no_embedding", "c", "all tokens alike"), ("no_attention", "b", "no attention"), ("right", "a", "right"))


def pushes(x):
    parts = [text(x, 28, "Where an update pushes the logits", "title")]
    for n, (powers, target) in enumerate(TOKENS):
        left = x + 10 + 170 * n
        parts.append(text(left + 2 * BAR, BASE + 46, f"token {n}: the target is {target}", "middle"))
        for v, power in enumerate(powers):
            p, at = power / sum(powers), left + (BAR + 14) * v
            top, middle = BASE - round(UNIT * p), at + BAR // 2
            end = BASE - UNIT if v == target else BASE
            parts += [rect(at, top, BAR, BASE - top, "c" if v == target else "b"), arrow(middle, top, middle, end),
                      text(middle, BASE + 18, f"{power}/{sum(powers)}", "middle")]
    parts += [rect(x, BASE, WIDTH, 1, "grid"), rect(x, BASE - UNIT, WIDTH, 1, "grid"),
              text(x + WIDTH - 4, BASE - UNIT - 4, "1", "end")]
    return [*parts, *key(x + 10, BASE + 62, "c", "target"), *key(x + 110, BASE + 62, "b", "other tokens")]


def run(x):
    to_pixels, parts = place(x, (0, UPDATES), (2, 6)), []
    for name, words in GUESSES:
        y = round(to_pixels((0, RUNS["guesses"][name]))[1], 1)
        parts += [f'<path class="grid" d="M{x} {y}H{x + WIDTH}"/>',
                  text(x + WIDTH, round(y - 8), f"{words}: {RUNS['guesses'][name]:.2f}", "end")]
    for across, (_, colour, words) in zip((0, 130, 250), RUNS_SHOWN):
        parts += key(x + across, BASE + 80, colour, words)
    series = [(colour, RUNS["mistakes"][name]) for name, colour, _ in RUNS_SHOWN]
    return [*losses(x, "The loss of a small model", UPDATES, 2, 6, series), *parts]


def picture():
    return document("Softmax minus one-hot, and the loss of a run", 840, 300, [*pushes(LEFT), *run(LEFT + 428)])
