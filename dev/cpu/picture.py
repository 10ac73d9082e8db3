#!/usr/bin/env python3
"""Writes doc/matmul_cpu.svg: what lies in memory, in the caches and in the registers while step 6 multiplies.

    python3 dev/cpu/picture.py           # writes it
    python3 dev/cpu/picture.py --check   # exits with 1 if the file is not what this script writes

The sizes are those of `make ladder-cpu`, with vectors of 16 floats: the head of GPT-2 124M for 256 tokens.
"""
import os
import sys

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "doc", "matmul_cpu.svg")
M, N, K, BLOCK, ROWS, VECTORS, WIDTH = 256, 50304, 768, 256, 8, 3, 16
COLS = VECTORS * WIDTH
STYLE = """.paper{fill:#fff} .frame{fill:none;stroke:#bbb} .matrix{fill:#efefef;stroke:#888} .grid{stroke:#bbb}
text{font:13px system-ui,"Helvetica Neue",Arial,sans-serif;fill:#222} .title{font-size:16px;font-weight:600}
.middle{text-anchor:middle} .a{fill:#d2691e} .b{fill:#2f6db3} .c{fill:#2e8b57}
@media (prefers-color-scheme:dark){
.paper{fill:#16181c} .frame{stroke:#555} .matrix{fill:#2b2f36;stroke:#8a8f98} .grid{stroke:#555} text{fill:#d5d8dc}
.a{fill:#f0975a} .b{fill:#74a9e8} .c{fill:#5cc08a}
}"""
PANEL_WIDTH, PANEL_HEIGHT, MARGIN, GAP = 372, 292, 12, 32


def size(numbers):
    """Bytes of so many floats, in words."""
    kib = numbers * 4 / 1024
    return f"{kib:.3g} KiB" if kib < 512 else f"{kib / 1024:.3g} MiB"


def rect(x, y, width, height, name):
    return f'<rect class="{name}" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def text(x, y, words, name=""):
    return f'<text{name and f" class={chr(34)}{name}{chr(34)}"} x="{x}" y="{y}">{words}</text>'


def lines(x, y, *words):
    return [text(x, y + 18 * i, line) for i, line in enumerate(words)]


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
            *lines(168, 110, "the panel of B, on its way", "to the first cache"),
            *lines(168, 182, f"packed block of A: {BLOCK} x {BLOCK}",
                   f"{size(BLOCK * BLOCK)}, in panels of {ROWS} rows", "one panel at a time goes",
                   "to the first cache")]


def first_cache():
    return [rect(20, 224, 96, 24, "matrix"), rect(62, 224, 6, 24, "a"), rect(124, 84, 84, 132, "matrix"),
            rect(124, 142, 84, 6, "b"), rect(124, 224, 84, 24, "c"),
            *lines(220, 106, "packed panel of B:", f"{BLOCK} x {COLS}, {size(BLOCK * COLS)};", "all panels of A",
                   "pass by it"),
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
    ("Second cache", "The orange block and the blue panel, packed.", second_cache),
    ("First cache", "A panel of A times the panel of B gives a tile of C.", first_cache),
    ("Registers", "For one k: the orange column times the blue row.", registers),
)


def picture():
    width, height = 2 * (PANEL_WIDTH + MARGIN) + GAP, 2 * (PANEL_HEIGHT + MARGIN) + GAP
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" role="img" '
             f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
             "<title>What lies in memory, caches and registers</title>", f"<style>\n{STYLE}\n</style>",
             f'<rect class="paper" width="{width}" height="{height}"/>']
    for i, (title, subtitle, draw) in enumerate(PANELS):
        x, y = MARGIN + i % 2 * (PANEL_WIDTH + GAP), MARGIN + i // 2 * (PANEL_HEIGHT + GAP)
        parts += [f'<g transform="translate({x} {y})">', rect(0, 0, PANEL_WIDTH, PANEL_HEIGHT, "frame"),
                  text(20, 30, f"{i + 1}. {title}", "title"), text(20, 52, subtitle), *draw(), "</g>"]
    parts += ["</svg>", ""]
    return "\n".join(parts)


def main():
    if sys.argv[1:] == ["--check"]:
        with open(PATH, encoding="utf-8") as file:
            raise SystemExit(file.read() != picture() and "picture: doc/matmul_cpu.svg is not what this script writes")
    if sys.argv[1:]:
        raise SystemExit(f"picture: unknown argument '{sys.argv[1]}', expected nothing or --check")
    with open(PATH, "w", encoding="utf-8") as file:
        file.write(picture())


if __name__ == "__main__":
    main()
