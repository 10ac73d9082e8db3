"""Figure of chapter 19: the learning rate of the recipe, and what a loss says."""
import math

from svg import axes, document, line, lines, path, text

STEPS, WARMUP, PEAK = 18865, 700, 6e-4
LEFT, BOTTOM, WIDTH, HEIGHT = 70, 330, 330, 240  # of the curve
SCALE, TOP, PER_NAT = 520, 60, 30                # of the losses: the line's x, the y of a loss of 12
VOCABULARY = 50257


def rate(step):
    """As llmc/run/schedulers.h computes it."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return 0.5 * PEAK * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def schedule():
    steps = [0, WARMUP - 1, *range(1000, STEPS, 400), STEPS]
    points = [(LEFT + WIDTH * step / STEPS, BOTTOM - HEIGHT * rate(step) / PEAK) for step in steps]
    half_of_decay = 9782
    return [text(24, 32, "Learning rate", "title"), path(points),
            *lines(LEFT + 24, BOTTOM - 60, "700 steps", "of warm-up"),
            *axes(LEFT, BOTTOM - HEIGHT, WIDTH, HEIGHT, ((half_of_decay / STEPS, "9,782"), (1, "18,865 steps")),
                  ((0, "0"), (0.5, "3e-4"), (1, "6e-4")))]


# Loss, what it means, and how many pixels the words are moved so that they do not meet.
LOSSES = ((math.log(VOCABULARY) + 1, "ln V + 1: worse than guessing, it has diverged", 0),
          (math.log(VOCABULARY) + 0.1536, "the first loss of GPT-2 124M", -9),
          (math.log(VOCABULARY), "ln V: every token is equally likely", 3),
          (0.98 * math.log(VOCABULARY), "0.98 ln V: above it, nothing is learned", 14),
          (math.log(257), "ln 257: these tokens are bytes", 0),
          (3.4250, "OpenAI's GPT-2 124M on FineWeb", -4), (3.28, "the end of this recipe", 12),
          (0.0, "a batch learned by heart (--overfit)", 0))


def landmarks():
    parts = [text(SCALE - 60, 32, "What a loss says", "title"), line(SCALE, TOP, SCALE, TOP + 12 * PER_NAT)]
    for loss, words, moved in LOSSES:
        y = round(TOP + (12 - loss) * PER_NAT, 1)
        parts += [line(SCALE - 4, y, SCALE + 4, y), text(SCALE - 10, y + 4 + moved, f"{loss:.2f}", "end"),
                  text(SCALE + 12, y + 4 + moved, words)]
    return parts


def picture():
    return document("The learning rate of the recipe, and what a loss says", 860, 440, [*schedule(), *landmarks()])
