"""Figure of chapter 8: the error of a finite difference over its step, for x^3 at 1.7, by the chapter's formulas."""
import math

from svg import axes, curve, document, lines, text

X = 1.7
VALUE, SLOPE2, SLOPE3 = X ** 3, 6 * X, 6.0  # the function, its second and third derivative
FLOAT, DOUBLE = 2.0 ** -24, 2.0 ** -53      # half an epsilon
LEFT, TOP, WIDTH, HEIGHT = 64, 56, 480, 210
BITS, SMALLEST = 30, -12                    # the steps go down to 2^-30, the errors to 1e-12


def one_sided(h):
    return h / 2 * SLOPE2 + 2 * DOUBLE * VALUE / h


def central(h, half_epsilon):
    return h * h / 6 * SLOPE3 + half_epsilon * VALUE / h


def drawn(error, colour):
    points = []
    for i in range(4 * BITS + 1):
        power = math.log10(error(2.0 ** (-i / 4)))
        if power <= 0:
            points.append((LEFT + WIDTH * i / 4 / BITS, TOP + HEIGHT * power / SMALLEST))
    return curve(points, colour)


def picture():
    steps = [(bits / BITS, f"2^-{bits}" if bits else "h = 1") for bits in range(0, BITS + 1, 6)]
    errors = [(1 - power / SMALLEST, f"1e{power}" if power else "1") for power in range(0, SMALLEST - 1, -3)]
    parts = [text(24, 28, "How wrong is a finite difference?", "title"), *axes(LEFT, TOP, WIDTH, HEIGHT, steps, errors),
             drawn(lambda h: central(h, FLOAT), "a"), drawn(one_sided, "c"), drawn(lambda h: central(h, DOUBLE), "b"),
             text(LEFT + 352, TOP + 12, "central, float"), text(LEFT + 340, TOP + 74, "one-sided, double"),
             text(LEFT + 120, TOP + 190, "central, double"),
             *lines(LEFT + WIDTH + 24, TOP + 40, "From the left: the curve", "of the function counts", "less and less.",
                    "", "To the right: rounding,", "divided by an ever", "smaller step, grows.")]
    return document("The error of a finite difference", 760, 296, parts)
