"""Figure of chapter 17: a block that two ranks split, and a sequence that four ranks share."""
from svg import arrow, document, rect, text

LANES, LANE = (74, 122), 34  # where the two ranks are, and their height
STEPS = ((24, 86, "matrix", ("norm", "norm"), ("rows 0, 1", "rows 2, 3")),
         (160, 176, "c", ("qkv, attention, attproj",) * 2, ("heads 0, 1", "heads 2, 3")),
         (386, 104, "matrix", ("+, norm",) * 2, ("rows 0, 1", "rows 2, 3")),
         (540, 140, "c", ("fc, GELU, fcproj",) * 2, ("half of the channels",) * 2),
         (730, 86, "matrix", ("+", "+"), ("rows 0, 1", "rows 2, 3")))
MEETINGS = ((135, "gather"), (361, "sum"), (515, "gather"), (705, "sum"))
RANKS, CHUNKS, CELL = 4, 8, 17
COLOURS = ("a", "b", "c", "matrix")


def block():
    parts = [text(24, 32, "Tensor parallelism: a block on two ranks", "title")]
    height = LANES[1] - LANES[0] + LANE + 16
    for x, width, name, words, what in STEPS:
        for rank, y in enumerate(LANES):
            style, middle = "small middle" + (" paper" if name == "c" else ""), x + width / 2
            parts += [rect(x, y, width, LANE, name), text(middle, y + 15, words[rank], style),
                      text(middle, y + 28, what[rank], style)]
    for (x, words), before, after in zip(MEETINGS, STEPS, STEPS[1:]):
        parts += [rect(x - 4, LANES[0] - 8, 8, height, "b"), text(x, LANES[0] - 14, words, "middle")]
        for y in LANES:
            end = before[0] + before[1]
            parts += [arrow(end + 1, y + 17, x - 5, y + 17), arrow(x + 5, y + 17, after[0] - 1, y + 17)]
    return parts + [text(24, 186, "In the backward a gather becomes a sum, and a sum becomes a gather; "
                                  "two gathers more bring the norms' rows back.")]


def mask(x, y, owners, title):
    """The scores of a causal mask, chunk by chunk of queries. owners: which rank has a chunk."""
    parts = [text(x, y - 14, title)]
    for chunk, rank in enumerate(owners):
        top = y + CELL * chunk
        left, right = x + CELL * chunk, x + CELL * (chunk + 1)
        parts.append(f'<path class="{COLOURS[rank]}" d="M{x} {top}H{left}L{right} {top + CELL - 1}H{x}Z"/>')
        parts.append(text(right + 6, top + 13, rank, "small"))
    return parts


def scores(owners, rank):
    """How much a rank has to do: half a cell on the diagonal of a chunk, and whole cells left of it."""
    return sum(chunk + 0.5 for chunk, owner in enumerate(owners) if owner == rank)


def shares(x, y, owners):
    """A bar for each rank."""
    parts = []
    for rank in range(RANKS):
        top = y + 34 * rank
        width = round(6 * scores(owners, rank), 1)
        parts += [rect(x, top, width, 18, COLOURS[rank]), text(x - 8, top + 14, rank, "end")]
    return parts


def gathered(x, y, zigzag):
    """Rank 1's queries, and the keys and values of all ranks, in order of position."""
    parts = [text(x, y - 14, "What rank 1 has")]
    for chunk, rank in enumerate(zigzag):
        own = rank == 1
        parts += [rect(x + 26 * chunk, y, 24, 22, COLOURS[1] if own else "frame"),
                  rect(x + 26 * chunk, y + 74, 24, 22, COLOURS[rank]),
                  text(x + 26 * chunk + 12, y + 89, rank, "small middle" + ("" if rank == 3 else " paper"))]
    parts += [text(x, y + 38, "q, and its own k and v: two chunks", "small"),
              arrow(x + 12, y + 44, x + 12, y + 70), text(x + 20, y + 62, "gather", "small"),
              arrow(x + 196, y + 70, x + 196, y + 44), text(x + 188, y + 62, "sum of dk and dv", "small end"),
              text(x, y + 112, "k and v of all chunks, for one layer", "small")]
    return parts


def sequence():
    in_order = [chunk * RANKS // CHUNKS for chunk in range(CHUNKS)]
    zigzag = [min(chunk, CHUNKS - 1 - chunk) for chunk in range(CHUNKS)]
    top = 268
    parts = [text(24, 222, "Context parallelism: the scores of a sequence on four ranks", "title")]
    for x, owners, title in ((24, in_order, "In order"), (318, zigzag, "Zig-zag")):
        parts += [*mask(x, top, owners, title), *shares(x + 190, top, owners), text(x + 190, top - 14, "scores")]
    return [*parts, *gathered(606, top, zigzag)]


def picture():
    return document("A block on two ranks, and a sequence on four", 840, 424, [*block(), *sequence()])
