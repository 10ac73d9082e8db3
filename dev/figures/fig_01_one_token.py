"""Figure of chapter 1: a token's way through a step, forward and back."""
from svg import arrow, document, line, lines, rect, text

LAYERS = (("embed", "C"), ("ln1", "C"), ("qkv", "3C"), ("attention", "C"), ("attproj", "C"), ("ln2", "C"),
          ("fc", "4C"), ("gelu", "4C"), ("fcproj", "C"), ("lnf", "C"), ("head, loss", "V"))
CHAPTERS = (2, 3, 4, 5, 4, 3, 4, 6, 4, 3, 7)
LEFT, WIDTH, STEP, HEIGHT, FORWARD, BACKWARD = 26, 64, 72, 40, 84, 186
BOTTOM = BACKWARD + HEIGHT
WORDS = ("Blue: a token's activations, with their columns. Orange: their gradients, and those of the parameters.",
         "Arrows down: what the forward keeps for the backward. At the end AdamW changes all parameters.")


def box(x, y, words, colour):
    return [rect(x, y, WIDTH, HEIGHT, "matrix"), rect(x, y, WIDTH, 4, colour),
            *[text(x + WIDTH // 2, y + 18 + 15 * i, word, "small middle") for i, word in enumerate(words)]]


def layer(i):
    x = LEFT + STEP * i
    between = [line(x - 8, y + HEIGHT // 2, x, y + HEIGHT // 2) for y in (FORWARD, BACKWARD) if i > 0]
    return [*between, *box(x, FORWARD, LAYERS[i], "b"), *box(x, BACKWARD, ("backward", f"chapter {CHAPTERS[i]}"), "a"),
            arrow(x + WIDTH // 2, FORWARD + HEIGHT + 4, x + WIDTH // 2, BACKWARD - 4)]


def picture():
    parts = [text(24, 32, "A step: forward, backward, update", "title"),
             rect(LEFT + STEP - 4, FORWARD - 12, 8 * STEP, BOTTOM - FORWARD + 24, "frame"),
             text(LEFT + 5 * STEP, FORWARD - 20, "a block, 12 times", "small middle"),
             *[part for i in range(len(LAYERS)) for part in layer(i)],
             arrow(LEFT, FORWARD - 10, LEFT + WIDTH, FORWARD - 10),
             arrow(LEFT + 10 * STEP + WIDTH, BOTTOM + 10, LEFT + 10 * STEP, BOTTOM + 10),
             *lines(LEFT, BOTTOM + 40, *WORDS)]
    return document("A token's way through a step", 840, BOTTOM + 74, parts)
