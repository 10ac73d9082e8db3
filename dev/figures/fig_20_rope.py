"""Figure of chapter 20: the wavelengths of RoPE's pairs, and the cache of a token with and without shared heads."""
import math

from svg import axes, bar, curve, document, key, text

HS, LEFT, TOP, WIDTH, HEIGHT = 64, 66, 56, 330, 190
MOST = 7  # digits of the longest wavelength that is drawn
CACHES = (("SmolLM2 135M", 22.5, 67.5), ("Llama 1B", 32, 128), ("Llama 3B", 112, 336), ("Llama 8B", 128, 512))


def place(pair, positions):
    return LEFT + WIDTH * pair / 32, TOP + HEIGHT * (1 - math.log10(positions) / MOST)


def wavelengths(theta):
    return [place(j, 2 * math.pi * theta ** (2 * j / HS)) for j in range(HS // 2)]


def picture():
    context = place(0, 8192)[1]
    parts = [text(LEFT - 46, 28, "Positions for one turn of a pair", "title"),
             *axes(LEFT, TOP, WIDTH, HEIGHT, ((0, "pair 0"), (0.5, "16"), (1, "31")),
                   [(digits / MOST, words) for digits, words in ((0, "1"), (2, "100"), (4, "10,000"), (6, "10^6"))]),
             curve([(LEFT, context), (LEFT + WIDTH, context)], "matrix", 1.5),
             text(LEFT + 8, round(context) - 6, "8,192 positions", "small"),
             curve(wavelengths(1e4), "a"), curve(wavelengths(5e5), "b"),
             *key(LEFT + 24, 276, "a", "theta 10,000"), *key(LEFT + 164, 276, "b", "theta 500,000"),
             text(476, 28, "KiB of a token in the cache, bf16", "title")]
    for i, (name, shared, alone) in enumerate(CACHES):
        y = 60 + 50 * i
        parts += [text(476, y + 15, name), *bar(590, y, 0.4, ((shared, "c"),), f"{shared:g}"),
                  *bar(590, y + 22, 0.4, ((alone, "matrix"),), f"{alone:g}")]
    parts += [*key(476, 276, "c", "heads of k and v are shared"), *key(700, 276, "matrix", "one for each q")]
    return document("Wavelengths of RoPE, and the cache of a token", 860, 306, parts)
