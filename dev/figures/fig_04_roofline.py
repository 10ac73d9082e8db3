"""Figure of chapter 4: what limits the layer fc of GPT-2 124M on an H100, for N rows. Both axes are logarithms."""
import math

from svg import axes, document, line, lines, rect, text

PEAK, RATE = 989.4, 3.35  # TFLOP/s in bf16 and TB/s of an H100 (llmc/model/gpu_peak.h)
C, OC, ROWS = 768, 3072, (1, 8, 64, 512, 4096)
X, Y, WIDTH, HEIGHT = 90, 78, 400, 220
LOW, ACROSS, UP = 0.5, 1000 / 0.5, 1000 / 1.0  # the axes begin at 0.5 operations a byte and at 1 TFLOP/s


def place(intensity, speed):
    return (round(X + WIDTH * math.log(intensity / LOW) / math.log(ACROSS), 1),
            round(Y + HEIGHT - HEIGHT * math.log(speed) / math.log(UP), 1))


def picture():
    ridge = PEAK / RATE
    parts = [text(24, 32, "What an H100 can reach", "title"), text(X - 66, Y - 18, "TFLOP/s", "small"),
             *axes(X, Y, WIDTH, HEIGHT, [(math.log(i / LOW) / math.log(ACROSS), str(i)) for i in (1, 10, 100, 1000)],
                   [(math.log(s) / math.log(UP), str(s)) for s in (1, 10, 100, 1000)]),
             text(X + WIDTH / 2, Y + HEIGHT + 42, "operations for each byte", "middle"),
             line(*place(LOW, LOW * RATE), *place(ridge, PEAK)), line(*place(ridge, PEAK), *place(1000, PEAK))]
    for n in ROWS:
        intensity = 2 * n * C * OC / (2 * (n * C + C * OC + n * OC))
        x, y = place(intensity, min(PEAK, intensity * RATE))
        parts += [rect(x - 4, y - 4, 8, 8, "a"), text(x + 8, y + (16 if n < 4096 else -9), f"N = {n}", "small")]
    parts += lines(530, 104, "On the slope memory is the limit:", f"{RATE} TB/s times the intensity.", "",
                   "On the level part arithmetic is", f"the limit: {PEAK:.0f} TFLOP/s.", "",
                   f"They meet at {ridge:.0f} operations a byte.", "", "Orange: the layer fc with N rows.")
    return document("The roofline of a linear layer", 800, Y + HEIGHT + 62, parts)
