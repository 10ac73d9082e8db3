"""Figure of chapter 11: three streams of an update whose arrays wait on the host; where the bytes of an 8B lie."""
from svg import bar, document, key, lines, rect, text

LEFT, TOP, WIDTH = 150, 74, 84  # where the streams begin, and the width of a chunk
CHUNKS = 6
COLOURS = ("a", "b")  # of the two windows
# GB of Llama 8B in fine-tuning: on the GPU and on the host. Parameters, gradients, master copy, moments.
PLACES = (("all on the GPU", (16.1, 32.1, 32.1, 64.2), (0, 0, 0, 0)),
          ("state on the host", (16.1, 32.1, 0, 0), (0, 0, 32.1, 64.2)),
          ("gradients, too", (16.1, 3.8, 0, 0), (0, 32.1, 32.1, 64.2)),
          ("moments in bf16", (16.1, 3.8, 0, 0), (0, 32.1, 32.1, 32.1)),
          ("parameters, too", (1.9, 3.8, 0, 0), (16.1, 32.1, 32.1, 32.1)))
KINDS = ("parameters, or slots for them", "gradients", "master copy", "m and v")
COLOURS_OF_KINDS = ("a", "b", "c", "matrix")
SCALE = 1.9  # pixels of a GB
LIMIT = 24


def streams():
    """Chunk k comes while chunk k - 1 is updated and chunk k - 2 leaves."""
    parts = [text(24, 32, "The update: two windows on the GPU take turns", "title")]
    for row, (name, late) in enumerate((("to the GPU", 0), ("update", 1), ("to the host", 2))):
        y = TOP + 44 * row
        parts.append(text(24, y + 15, name))
        for chunk in range(CHUNKS):
            x = LEFT + WIDTH * (chunk + late)
            parts += [rect(x, y, WIDTH - 2, 20, COLOURS[chunk % 2]),
                      text(x + WIDTH / 2 - 1, y - 5, f"chunk {chunk}", "small middle")]
    return parts + lines(LEFT, TOP + 136, "Each colour is a window. A chunk that comes waits until the chunk before it "
                         "in its window has left.")


def memory():
    parts, host = [text(24, 266, "Llama 8B: GB on the GPU and on the host, without activations", "title")], 470
    parts += [text(LEFT, 288, "on the GPU", "small"), text(host, 288, "on the host", "small"),
              rect(LEFT + LIMIT * SCALE, 292, 1, 30 * len(PLACES), "grid"),
              text(LEFT + LIMIT * SCALE + 4, 452, "24", "small")]
    for row, (name, *places) in enumerate(PLACES):
        y = 296 + 30 * row
        parts.append(text(24, y + 15, name))
        for x, sizes in zip((LEFT, host), places):
            parts += bar(x, y, SCALE, zip(sizes, COLOURS_OF_KINDS), f"{sum(sizes):.0f}")
    for words, colour, x in zip(KINDS, COLOURS_OF_KINDS, (0, 226, 322, 436)):
        parts += key(LEFT + x, 468, colour, words)
    return parts


def picture():
    return document("Arrays that wait on the host: three streams of an update", 860, 500, [*streams(), *memory()])
