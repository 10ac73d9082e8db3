"""Figure of chapter 8: the slopes that differences find for x^3 at 1.7, and runs whose backward has a mistake."""
from plots import HEIGHT, LEFT, RUNS, TOP, WIDTH, losses, place
from svg import axes, curve, document, key, text

AT, H = 1.7, 0.5
WIDE, HIGH = (0.9, 2.5), (0, 14)


def slopes(x):
    to_pixels = place(x, WIDE, HIGH)
    steps = [(WIDE[0] + (WIDE[1] - WIDE[0]) * i / 40) for i in range(41)]
    parts = [text(x, 28, "The slope of x^3 at 1.7, with h = 1/2", "title"),
             *axes(x, TOP, WIDTH, HEIGHT, [((at - WIDE[0]) / (WIDE[1] - WIDE[0]), words) for at, words in
                                           ((AT - H, "x - h"), (AT, "x"), (AT + H, "x + h"))], ((0, "0"),)),
             curve([to_pixels((at, at ** 3)) for at in steps if at ** 3 <= HIGH[1]], "matrix", 5)]
    for colour, low, slope in (("c", AT - H, ((AT + H) ** 3 - (AT - H) ** 3) / (2 * H)),
                               ("a", AT, ((AT + H) ** 3 - AT ** 3) / H), ("b", AT - H, 3 * AT ** 2)):
        start = AT ** 3 + slope * (low - AT) if colour == "b" else low ** 3
        parts.append(curve([to_pixels((at, start + slope * (at - low))) for at in (low, AT + H)], colour))
    words = ("a", "to one side: 11.47"), ("c", "to both sides: 8.92"), ("b", "the slope itself: 8.67")
    for i, (colour, name) in enumerate(words):
        parts += key(x + 20, TOP + 8 + 24 * i, colour, name)
    return parts


def picture():
    names, right = ("no_mean_gn", "no_mean_g", "no_gelu_term", "right"), LEFT + 428
    gn, g, gelu, best = (f"{RUNS['mistakes'][name][-1]:.2f}" for name in names)
    marks = ((170, 3.45, f"LayerNorm without mean(g n): {gn}"), (210, 2.7, f"LayerNorm without mean(g): {g}"),
             (76, 2.14, f"GELU without its second term: {gelu}; right: {best}"))
    series = [(colour, RUNS["mistakes"][name]) for name, colour in zip(names, ("matrix", "a", "c", "b"))]
    return document("Slopes by differences, and runs with a wrong backward", 840, 286,
                    [*slopes(LEFT), *losses(right, "Four backwards, one of them right", 600, 2.1, 3.6, series, marks)])
