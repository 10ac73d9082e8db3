"""Figure of chapter 17: what each axis of the grid cuts, and what one rank then holds, by the chapter's table."""
import os
import re

from svg import bar, document, key, rect, text

HERE = os.path.dirname(os.path.abspath(__file__))
CUTS, SIDE = 4, 76                         # ranks of the small pictures, and the side of a square there
LEFT, TOP, ROW, SCALE = 150, 234, 30, 3.3  # of the bars; SCALE: pixels of a GiB
NAMES = {"-np 1": "1 GPU", "-np 8 -z 1": "dp 8, ZeRO-1", "-np 8 -z 3": "dp 8, ZeRO-3", "-np 8 --tp 8": "tp 8",
         "-np 8 --tp 8 --sp 0": "tp 8, --sp 0", "-np 8 --pp 8": "pp 8, first stage",
         "-np 8 --cp 8 -z 1": "cp 8, ZeRO-1", "-np 8 --tp 2 --cp 2 --pp 2 -z 1": "tp 2, cp 2, pp 2"}
KINDS = (("weights", "a"), ("gradients", "b"), ("optimizer", "c"), ("activations", "matrix"))
CARD = 79  # GiB of an H100, as --plan assumes


def rows():
    """The rows of the chapter's table, which is --plan's (dev/plan_table.py): GiB of each kind, in all, and GB sent."""
    with open(os.path.join(HERE, "..", "..", "doc", "17_grid.md"), encoding="utf-8") as file:
        found = re.findall(r"^\| `(-np [^`]*)` \| (.*) \|$", file.read(), re.M)
    return [(words, [float(cell) for cell in cells.split(" | ")]) for words, cells in found]


def cut(x, y, whole, rank):
    """A square of which a rank has some rectangles (x, y, width, height), in parts of the side."""
    parts = [rect(x, y, SIDE, SIDE, "matrix")]
    parts += [rect(round(x + left * SIDE, 1), round(y + top * SIDE, 1), round(width * SIDE, 1), round(height * SIDE, 1),
                   whole) for left, top, width, height in rank]
    return parts


def layers(x, y):
    return [f'<path class="grid" d="M{x} {y + SIDE * i // CUTS}h{SIDE}"/>' for i in range(1, CUTS)]


def axes():
    """Four pictures of the weights of four layers and of a batch of four sequences. Rank 0's part is coloured."""
    everything, quarter = [(0, 0, 1, 1)], 1 / CUTS
    two_chunks = [(0, 0, quarter / 2, 1), (1 - quarter / 2, 0, quarter / 2, 1)]
    pictures = (("dp", "shares the sequences", everything, [(0, 0, 1, quarter)]),
                ("tp", "splits each layer", [(0, 0, quarter, 1)], everything),
                ("pp", "shares the layers", [(0, 0, 1, quarter)], everything),
                ("cp", "splits each sequence", everything, two_chunks))
    parts = [text(24, 32, "What rank 0 of four has of the weights and of a batch", "title")]
    for i, (name, words, weights, batch) in enumerate(pictures):
        x = 24 + 204 * i
        parts += [text(x, 60, f"{name} {words}"), *cut(x, 72, "a", weights), *layers(x, 72),
                  *cut(x + SIDE + 16, 72, "b", batch), *layers(x + SIDE + 16, 72),
                  text(x + SIDE / 2, 72 + SIDE + 16, "layers", "small middle"),
                  text(x + SIDE * 1.5 + 16, 72 + SIDE + 16, "sequences", "small middle")]
    return parts


def bars():
    parts = [text(24, 210, "llama:8B, sequences of 8,192 tokens: GiB of a rank, predicted by --plan", "title"),
             text(816, 210, "GB sent in a step", "end")]
    table = rows()
    end = TOP + ROW * len(table)
    for i, (words, cells) in enumerate(table):
        y, sizes = TOP + ROW * i, [(size, name) for size, (_, name) in zip(cells, KINDS)]
        parts += [text(24, y + 15, NAMES[words]), *bar(LEFT, y, SCALE, sizes, f"{cells[4]:.1f}"),
                  text(816, y + 15, f"{cells[5]:.1f}", "end")]
    x = round(LEFT + CARD * SCALE, 1)
    parts += [f'<path class="line" stroke-dasharray="5 4" d="M{x} {TOP - 8}V{end}"/>',
              text(x + 6, end - 2, f"an H100 has {CARD} GiB", "small")]
    for i, (words, name) in enumerate(KINDS):
        parts += key(LEFT + 110 * i, end + 16, name, words)
    return parts


def picture():
    height = TOP + len(NAMES) * ROW + 48
    return document("What each axis cuts, and the memory of one rank", 840, height, [*axes(), *bars()])
