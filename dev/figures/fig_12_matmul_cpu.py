"""Figure of chapter 12: what lies in memory, in the caches and in the registers while step 6 multiplies.

The sizes are those of `make ladder-cpu`, with vectors of 16 floats: the head of GPT-2 124M for 256 tokens.
"""
from svg import document, group, lines, rect, text

M, N, K, BLOCK, ROWS, VECTORS, WIDTH = 256, 50304, 768, 256, 8, 3, 16
COLS = VECTORS * WIDTH
PANEL_WIDTH, PANEL_HEIGHT, MARGIN, GAP = 372, 292, 12, 32


def size(numbers):
    """Bytes of so many floats, in words."""
    kib = numbers * 4 / 1024
    return f"{kib:.3g} KiB" if kib < 512 else f"{kib / 1024:.3g} MiB"


def memory():
    """The three matrices, with the parts at work. As in the other panels, A is left of C, and B is above C."""
    return [rect(20, 176, 84, 56, "matrix"), rect(20, 176, 28, 56, "a"), text(76, 209, "A", "middle"),
            rect(112, 84, 200, 84, "matrix"), rect(190, 84, 8, 28, "b"), text(150, 131, "B", "middle"),
            rect(112, 176, 200, 56, "matrix"), rect(190, 176, 8, 56, "c"), text(150, 209, "C", "middle"),
            *lines(20, 254, f"A {M} x {K}: {size(M * K)}, B {K} x {N}: {size(K * N)}", f"C {M} x {N}: {size(M * N)}")]


def second_cache():
    panels = (f'<path class="grid" d="M20 {160 + 8 * i}h96"/>' for i in range(1, 12))
    return [rect(20, 160, 96, 96, "matrix"), *panels, rect(20, 192, 96, 8, "a"),
            rect(124, 84, 28, 68, "b"), rect(124, 160, 28, 96, "matrix"),
            rect(124, 192, 28, 8, "c"),
            *lines(168, 92, f"packed panel of B: {BLOCK} x {COLS}", f"{size(BLOCK * COLS)}; all panels of A",
                   "pass by it"),
            *lines(168, 182, f"packed block of A: {BLOCK} x {BLOCK}",
                   f"{size(BLOCK * BLOCK)}, in panels of {ROWS} rows")]


def first_cache():
    return [rect(20, 224, 96, 24, "matrix"), rect(62, 224, 6, 24, "a"), rect(124, 84, 84, 132, "matrix"),
            rect(124, 142, 84, 6, "b"), rect(124, 224, 84, 24, "c"),
            *lines(220, 100, f"{size(ROWS * BLOCK + BLOCK * COLS)} for a tile:",
                   "more than many L1", "caches hold, so both", "stream through"),
            *lines(20, 190, "panel of A:", f"{ROWS} x {BLOCK}, {size(ROWS * BLOCK)}"),
            *lines(220, 241, f"tile of C: {ROWS} x {COLS}")]


def registers():
    cells = [rect(56 + 64 * j, 122 + 16 * i, 62, 14, "c") for i in range(ROWS) for j in range(VECTORS)]
    row_of_b = [rect(56 + 64 * j, 84, 62, 14, "b") for j in range(VECTORS)]
    column_of_a = [rect(20, 122 + 16 * i, 14, 14, "a") for i in range(ROWS)]
    return [*cells, *row_of_b, *column_of_a, text(258, 96, f"{VECTORS} registers"),
            *lines(258, 172, f"{ROWS * VECTORS} registers", f"of {WIDTH} sums"),
            text(20, 274, f"{VECTORS} loads of B and {ROWS} of A for {ROWS * VECTORS} multiply-adds")]


PANELS = (
    ("Memory and the last cache", "Coloured parts are at work; 2 to 4 enlarge them.", memory),
    ("L2 cache", "What stays: the block of A and a panel of B, packed.", second_cache),
    ("L1 cache", "What passes: two panels, which give a tile of C.", first_cache),
    ("Registers", "For one k: the orange column times the blue row.", registers),
)


def picture():
    width, height = 2 * (PANEL_WIDTH + MARGIN) + GAP, 2 * (PANEL_HEIGHT + MARGIN) + GAP
    parts = []
    for i, (title, subtitle, draw) in enumerate(PANELS):
        x, y = MARGIN + i % 2 * (PANEL_WIDTH + GAP), MARGIN + i // 2 * (PANEL_HEIGHT + GAP)
        parts += group(x, y, rect(0, 0, PANEL_WIDTH, PANEL_HEIGHT, "frame"), text(20, 30, f"{i + 1}. {title}", "title"),
                       text(20, 52, subtitle), *draw())
    return document("What lies in memory, caches and registers", width, height, parts)
