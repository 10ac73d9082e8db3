"""Figure of chapter 0: softmax turns logits into probabilities, and logits that are three times as large."""
import math

from svg import arrow, document, rect, text

LOGITS, WIDE, HIGH = (2, 1, 0, -1), 46, 60


def bars(x, base, values, colour, form):
    """A bar for each value, and its number at its end. The largest is HIGH pixels high."""
    parts = []
    for i, value in enumerate(values):
        left, height = x + WIDE * i, round(HIGH * abs(value) / max(values), 1)
        parts += [rect(left, base - height if value > 0 else base, WIDE - 12, height, colour),
                  text(left + WIDE / 2 - 6, base - height - 6 if value >= 0 else base + height + 15,
                       form.format(value), "small middle")]
    return parts


def row(base, factor):
    logits = [factor * logit for logit in LOGITS]
    powers = [math.exp(logit) for logit in logits]
    shares = [power / sum(powers) for power in powers]
    return [*bars(40, base, logits, "matrix", "{}"), arrow(232, base - 24, 296, base - 24),
            text(264, base - 34, "exp", "small middle"), *bars(320, base, powers, "b", "{:.3g}"),
            arrow(512, base - 24, 576, base - 24), text(544, base - 34, f"/ {sum(powers):.1f}", "small middle"),
            *bars(600, base, shares, "a", "{:.2g}")]


def picture():
    names = (40, "Logits"), (320, "All positive"), (600, "Probabilities: sum 1")
    return document("Softmax turns logits into probabilities", 840, 312,
                    [*[text(x, 30, name, "title") for x, name in names], *row(132, 1), *row(250, 3)])
