"""Figure of chapter 13: the memories of an H100, with their sizes, and how fast numbers move between them."""
from svg import arrow, document, rect, text

# name, size in bytes of the whole GPU, rate towards the threads in GB/s, the class of its bar, where it is
LEVELS = (("registers", 132 * 256 * 2**10, 0, "a", "in each multiprocessor, 256 KiB"),
          ("shared memory", 132 * 227 * 2**10, 33500, "b", "in each multiprocessor, 227 KiB"),
          ("L2 cache", 50e6, 10100, "c", "one for all multiprocessors"),
          ("device memory", 80e9, 3350, "matrix", "beside the chip"))


def picture():
    parts = [text(20, 30, "The memories of an H100", "title"),
             text(20, 54, "Size of all together; arrows: GB a second")]
    for i, (name, size, rate, color, place) in enumerate(LEVELS):
        y, width = 78 + 84 * i, 190 + 110 * i
        parts += [rect(380 - width / 2, y, width, 40, color if color == "matrix" else "frame"),
                  rect(380 - width / 2, y, 8, 40, color), text(380, y + 18, name, "middle"),
                  text(380, y + 33, f"{size / 1e6:,.0f} MB", "small middle"),
                  text(380 + width / 2 + 12, y + 24, place, "small")]
        if rate:
            parts += [arrow(380, y, 380, y - 42), text(390, y - 16, f"{rate:,}")]
    return document("The memories of an H100", 800, 390, parts)
