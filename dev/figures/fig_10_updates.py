"""Figure of chapter 10: the numbers of three formats between 0 and 4, and a weight that gets 1,024 small updates."""
from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, curve, document, text

GOLDEN, MASK = 0x9e3779b97f4a7c15, 2 ** 64 - 1  # of llmc/base/rand.h
UPDATES, APART = 1024, 2.0 ** -7                # APART: how far the numbers of bf16 from 1 to 2 are apart


def mix(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def random_bits(update):
    """The 16 bits that the chapter's example adds to its first weight."""
    key = mix(mix(42 + GOLDEN) + 5 * GOLDEN & MASK)  # rand_u64(42, RAND_ROUNDING, update)
    return mix(mix(key + (update + 1) * GOLDEN & MASK) + GOLDEN & MASK) >> 32 & 0xffff


def lines_of_numbers(x):
    """Every number of a format from 0 to 4, but for those so near 0 that their lines would be one."""
    parts = [text(x, 28, "The numbers from 0 to 4", "title")]
    for row, (name, mantissa) in enumerate((("bf16", 7), ("e4m3", 3), ("e5m2", 2))):
        y, wide = TOP + 16 + 62 * row, WIDTH / 4
        numbers = [2.0 ** e * (1 + i / 2 ** mantissa) for e in range(-7, 2) for i in range(2 ** mantissa)]
        strokes = "".join(f"M{x + wide * at:.1f} {y}v28" for at in (0, *numbers, 4))
        parts += [f'<path class="line" d="{strokes}"/>',
                  text(x, y + 46, f"{name}: {2 ** mantissa} numbers from 1 to 2")]
    return parts + [text(x + WIDTH * at / 4, TOP + 10, str(at), "middle") for at in range(5)]


def updates(x):
    to_pixels = place(x, (0, UPDATES), (0.98, 1.26))
    parts = [text(x, 28, "1,024 steps of 2^-12, from 1 on", "title"),
             *axes(x, TOP, WIDTH, HEIGHT, ((0, "0"), (0.5, "512"), (1, "1024")),
                   [((at - 0.98) / 0.28, str(at)) for at in (1.0, 1.1, 1.2)])]
    weight, walk = 1.0, [(0, 1.0)]
    for update in range(1, UPDATES + 1):
        low = weight // APART * APART
        up = int((weight + 2.0 ** -12 - low) / APART * 65536) + random_bits(update) >= 65536
        walk += [(update - 1, weight), (update, low + APART * up)] if weight != low + APART * up else []
        weight = low + APART * up
    walk.append((UPDATES, weight))
    for colour, points in (("b", [(0, 1), (UPDATES, 1.25)]), ("c", walk), ("a", [(0, 1), (UPDATES, 1)])):
        parts.append(curve([to_pixels(point) for point in points], colour))
    return parts + [text(x + 30, TOP + 46, "exact, and the master weight"), text(x + 210, TOP + 112, "at random"),
                    text(x + 150, TOP + HEIGHT - 18, "to the nearest")]


def picture():
    return document("The numbers of bf16, e4m3 and e5m2, and small updates", 840, 286,
                    [*lines_of_numbers(LEFT), *updates(LEFT + 428)])
