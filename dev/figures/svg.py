"""What the figures of doc/ share: one style for light and dark pages, and the parts of an SVG file as text.

Classes of shapes: paper, frame, matrix, grid, line, and the colours a (orange), b (blue), c (green). Classes of text:
title, small, middle (centred on x), end (ends at x).
"""
import math

STYLE = """.paper{fill:#fff} .frame{fill:none;stroke:#bbb} .matrix{fill:#efefef;stroke:#888} .grid{stroke:#bbb}
.line{fill:none;stroke:#555;stroke-width:1.5} .head{fill:#555}
text{font:13px system-ui,"Helvetica Neue",Arial,sans-serif;fill:#222} .title{font-size:16px;font-weight:600}
.small{font-size:11px} .middle{text-anchor:middle} .end{text-anchor:end}
.a{fill:#d2691e} .b{fill:#2f6db3} .c{fill:#2e8b57}
@media (prefers-color-scheme:dark){
.paper{fill:#16181c} .frame{stroke:#555} .matrix{fill:#2b2f36;stroke:#8a8f98} .grid{stroke:#555} text{fill:#d5d8dc}
.line{stroke:#aab} .head{fill:#aab} .a{fill:#f0975a} .b{fill:#74a9e8} .c{fill:#5cc08a}
}"""


def rect(x, y, width, height, name):
    return f'<rect class="{name}" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def text(x, y, words, name=""):
    return f'<text{name and f" class={chr(34)}{name}{chr(34)}"} x="{x}" y="{y}">{words}</text>'


def lines(x, y, *words):
    return [text(x, y + 18 * i, line) for i, line in enumerate(words)]


def line(x1, y1, x2, y2):
    return f'<path class="line" d="M{x1} {y1}L{x2} {y2}"/>'


def arrow(x1, y1, x2, y2):
    """A line with a head at its end. It is level or upright."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    back_x, back_y = x2 - 8 * dx, y2 - 8 * dy
    head = f"M{x2} {y2}L{back_x + 4 * dy} {back_y + 4 * dx}L{back_x - 4 * dy} {back_y - 4 * dx}Z"
    return line(x1, y1, back_x, back_y) + f'<path class="head" d="{head}"/>'


def key(x, y, name, words):
    """What a colour means."""
    return [rect(x, y, 14, 14, name), text(x + 20, y + 12, words)]


def bar(x, y, scale, sizes, words):
    """Pieces side by side, and words after the last one. sizes: (number, class); scale: pixels of 1."""
    parts = []
    for size, name in sizes:
        parts += [rect(round(x, 1), y, round(size * scale, 1), 20, name)] if size else []
        x += size * scale
    return [*parts, text(round(x + 8), y + 15, words)]


def axes(x, y, width, height, across, up):
    """Two axes from (x, y + height) on, with labels: (place from 0 to 1, words)."""
    bottom = y + height
    return [line(x, y - 8, x, bottom), line(x, bottom, x + width, bottom),
            *[text(round(x + at * width, 1), bottom + 20, words, "middle") for at, words in across],
            *[text(x - 6, round(bottom + 4 - at * height, 1), words, "end") for at, words in up]]


def path(points, dashes=""):
    """A thin line through points (x, y)."""
    return f'<path class="line" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"{dashes}/>'


def curve(points, name, width=2):
    """A line through points (x, y), as a filled shape, because the colours are fills. x grows from point to point."""
    sides = []
    for sign in (-1, 1):
        for i, (x, y) in enumerate(points):
            (x0, y0), (x1, y1) = points[max(i - 1, 0)], points[min(i + 1, len(points) - 1)]
            across = sign * width / 2 / math.hypot(x1 - x0, y1 - y0)
            sides.append((sign, i, x - across * (y1 - y0), y + across * (x1 - x0)))
    sides.sort(key=lambda side: (side[0], side[0] * -side[1]))
    return f'<path class="{name}" d="M{"L".join(f"{x:.1f} {y:.1f}" for _, _, x, y in sides)}Z"/>'


def group(x, y, *parts):
    return [f'<g transform="translate({x} {y})">', *parts, "</g>"]


def document(title, width, height, parts):
    return "\n".join(['<svg xmlns="http://www.w3.org/2000/svg" role="img" '
                      f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
                      f"<title>{title}</title>", f"<style>\n{STYLE}\n</style>",
                      f'<rect class="paper" width="{width}" height="{height}"/>', *parts, "</svg>", ""])
