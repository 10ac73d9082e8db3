"""Figure of chapter 7: the loss against the probability of the target, and against the lead of its logit."""
import math

from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, curve, document, rect, text

HIGH, WIDE = 6, 6  # the largest loss and the largest lead, in nats
MARKED = (5 / 8, "5/8"), (1 / 8, "1/8"), (1 / 257, "1/257")


def panel(x, title, low, to_loss, across):
    """The curve of a loss from low to the right end of across, and its two axes."""
    high = across[-1][0]
    to_pixels = place(x, (across[0][0], high), (0, HIGH))
    points = [low + (high - low) * (i / 80) ** 2 for i in range(81)]
    ticks = [((at - across[0][0]) / (high - across[0][0]), words) for at, words in across]
    return to_pixels, [text(x, 28, title, "title"),
                       *axes(x, TOP, WIDTH, HEIGHT, ticks, [(i / HIGH, str(i)) for i in range(0, HIGH + 1, 2)]),
                       curve([to_pixels((at, to_loss(at))) for at in points], "b")]


def picture():
    to_pixels, parts = panel(LEFT, "Loss by the target's probability", math.exp(-HIGH), lambda p: -math.log(p),
                             ((0, "0"), (0.25, "1/4"), (0.5, "1/2"), (1, "1")))
    lead_pixels, lead_parts = panel(LEFT + 428, "Loss by the lead of the target's logit", -WIDE,
                                    lambda lead: math.log1p(math.exp(-lead)),
                                    ((-WIDE, str(-WIDE)), (-WIDE / 2, str(-WIDE // 2)), (0, "0"),
                                     (WIDE / 2, str(WIDE // 2)), (WIDE, str(WIDE))))
    for p, words in MARKED:
        lead, loss = math.log(p / (1 - p)), -math.log(p)
        (x, y), (lead_x, lead_y) = to_pixels((p, loss)), lead_pixels((lead, loss))
        parts += [rect(round(x - 4, 1), round(y - 4, 1), 8, 8, "a"),
                  text(round(x + 10), round(y - 2), f"{words}: {loss:.2f}"),
                  rect(round(lead_x - 4, 1), round(lead_y - 4, 1), 8, 8, "a"),
                  text(round(lead_x + 10), round(lead_y - 2), f"slope {p - 1:.2f}")]
    return document("The loss of a token", 840, 286, [*parts, *lead_parts])
