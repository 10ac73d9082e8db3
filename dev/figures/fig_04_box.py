"""Figure of chapter 4: a product as a box, whose volume is the work and whose faces are the matrices."""
from svg import document, lines, text

C, OC = 768, 3072  # of the layer fc of GPT-2 124M
X, Y, WIDTH, HEIGHT, DEPTH = 60, 130, 190, 110, 90  # the box on the left: OC, N and C in pixels


def face(name, x, y, *steps):
    """A flat shape from (x, y) on."""
    return f'<path class="{name}" d="M{x:.1f} {y:.1f}' + "".join(f"l{dx:.1f} {dy:.1f}" for dx, dy in steps) + 'Z"/>'


def box(x, y, width, height, depth, at=None):
    """Front: out. Top: weight. Side: inp. at: the part of the height and width at which a number of out is marked."""
    back, half = (0.7 * depth, -0.5 * depth), (-0.7 * depth, 0.5 * depth)
    parts = [face("matrix", x, y, (width, 0), (0, height), (-width, 0)),
             face("matrix", x, y, back, (width, 0), half), face("matrix", x + width, y, back, (0, height), half)]
    if at:
        across, down = x + at[1] * width, y + at[0] * height
        parts += [face("c", across, down, (10, 0), (0, 10), (-10, 0)), face("b", across, y, back, (10, 0), half),
                  face("a", x + width, down, back, (0, 10), half)]
    return parts


def picture():
    parts = [text(24, 32, "A multiply-add is a point of a box", "title"),
             *box(X, Y, WIDTH, HEIGHT, DEPTH, (0.6, 0.55)), text(X - 10, Y + HEIGHT / 2 + 4, "N", "end"),
             text(X + WIDTH / 2, Y + HEIGHT + 18, "OC", "middle"), text(X + 14, Y - 24, "C", "end"),
             text(X + 10, Y + 22, "out"), text(X + 48, Y - 16, "weight"), text(X + WIDTH + 16, Y + 26, "inp"),
             *lines(24, Y + HEIGHT + 48, "Forward: sums along C fill the front.", "dinp: sums along OC fill the side.",
                    "dweight: sums along N fill the top."),
             text(400, 32, "The layer fc, to scale", "title")]
    for x, n in ((400, 64), (550, 512), (700, 4096)):
        ratio = 2 * n * C * OC / (2 * (n * C + C * OC + n * OC))
        parts += [*box(x, 90, OC / 32, n / 32, C / 32), text(x, 64, f"N = {n:,}"),
                  *lines(x, Y + HEIGHT + 48, f"{ratio:.0f} operations", "a byte")]
    return document("A product as a box", 840, Y + HEIGHT + 100, parts)
