"""Figure of chapter 21: what a query sees with three masks, and the shapes of LoRA."""
from svg import document, rect, text

CELL, TOKENS, TOP = 14, 12, 64
MASKS = (("causal", lambda q, k: k <= q), ("a window of 4", lambda q, k: q - 4 < k <= q),
         ("three documents", lambda q, k: k <= q and sum(q >= at for at in (5, 9)) == sum(k >= at for at in (5, 9))))


def mask(x, title, sees):
    return [text(x, TOP - 12, title), *(rect(x + CELL * k, TOP + CELL * q, CELL - 2, CELL - 2,
                                             "b" if sees(q, k) else "matrix")
                                        for q in range(TOKENS) for k in range(TOKENS))]


def picture():
    parts = [text(20, 28, "Which keys (across) a query (down) sees", "title"),
             *(part for i, row in enumerate(MASKS) for part in mask(20 + 190 * i, *row)),
             text(600, 28, "LoRA: A and B learn", "title"), rect(600, TOP, 128, 128, "matrix"),
             text(664, TOP + 68, "W: OC x C", "middle"), rect(740, TOP, 6, 128, "a"), rect(600, TOP + 140, 128, 6, "a"),
             text(754, TOP + 68, "B: OC x R"), text(600, TOP + 164, "A: R x C")]
    return document("Masks, and the shapes of LoRA", 850, 246, parts)
