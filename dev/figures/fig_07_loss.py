"""Figure of chapter 7: the head in chunks. Sizes of GPT-2 124M, 4 sequences of 1,024 tokens, fp32."""
from svg import arrow, document, lines, rect, text

N, VP, CHUNK = 4096, 50304, 256
MIB = 4 / 1024 / 1024
LEFT, TOP, WIDTH, HEIGHT, STRIP = 150, 130, 420, 128, 16
CHUNK_TOP, BOTTOM, RIGHT = TOP + 48, TOP + HEIGHT, LEFT + WIDTH
MIDDLE, CENTRE = CHUNK_TOP + STRIP // 2, LEFT + WIDTH // 2


def rows(x, name, words):
    """A tensor (N, C), with the rows of the chunk in colour."""
    return [rect(x, TOP, 48, HEIGHT, "matrix"), rect(x, CHUNK_TOP, 48, STRIP, name),
            text(x + 24, BOTTOM + 20, words, "middle")]


def picture():
    parts = [text(24, 32, "The head, a chunk of rows at a time", "title"),
             rect(LEFT, 60, WIDTH, 48, "matrix"), text(LEFT - 12, 89, "wte (V, C)", "end"),
             *rows(60, "a", "lnf (N, C)"), arrow(112, MIDDLE, LEFT - 6, MIDDLE),
             rect(LEFT, TOP, WIDTH, HEIGHT, "frame"), rect(LEFT, CHUNK_TOP, WIDTH, STRIP, "b"),
             *lines(LEFT + 12, TOP + 20, f"all logits (N, Vp): {N * VP * MIB:.0f} MiB, which never exist"),
             *lines(LEFT + 12, CHUNK_TOP + STRIP + 20,
                    f"{CHUNK} rows: {CHUNK * VP * MIB:.0f} MiB. They become the losses,",
                    "then their own gradient, in place."),
             arrow(RIGHT + 6, MIDDLE, RIGHT + 64, MIDDLE), *rows(RIGHT + 70, "c", "dlnf (N, C)"),
             arrow(CENTRE, BOTTOM + 6, CENTRE, BOTTOM + 34), rect(LEFT, BOTTOM + 40, WIDTH, 48, "c"),
             text(LEFT - 12, BOTTOM + 69, "dwte (V, C)", "end"),
             *lines(RIGHT + 16, BOTTOM + 60, "The first chunk writes it,", "later chunks add to it.")]
    return document("The head in chunks", 840, 366, parts)
