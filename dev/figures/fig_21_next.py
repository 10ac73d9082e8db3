"""Figure of chapter 21: tokens on their way to experts. Each expert takes as many as its capacity; one passes by."""
from svg import arrow, document, line, rect, text

CHOICES = "bacbbab"  # the expert of each token, by the class of its colour
CAPACITY, BOX, STEP, TOP = 3, 26, 34, 62


def token(x, y, number):
    return [rect(x, y, BOX, BOX, CHOICES[number]), text(x + BOX / 2, y + 18, str(number), "middle")]


def places():
    """Token -> its place: expert, slot. A token beyond the capacity has none."""
    taken, found = dict.fromkeys("abc", 0), {}
    for number, expert in enumerate(CHOICES):
        if taken[expert] < CAPACITY:
            found[number] = expert, taken[expert]
            taken[expert] += 1
    return found


def picture():
    parts, found = [], places()
    for x, title in ((24, "tokens"), (230, "sorted by expert"), (500, "experts")):
        parts.append(text(x, 36, title, "title"))
    for row, expert in enumerate("abc"):
        y = TOP + 2 * STEP * row + 10
        for slot in range(CAPACITY):
            parts.append(rect(230 + STEP * slot, y, BOX, BOX, "matrix"))
        parts += [arrow(230 + STEP * CAPACITY + 6, y + BOX / 2, 494, y + BOX / 2),
                  rect(500, y - 8, 90, BOX + 16, "matrix"), text(545, y + 18, f"MLP {row}", "middle"),
                  rect(500, y - 8, 6, BOX + 16, expert)]
    for number, _ in enumerate(CHOICES):
        y = TOP + STEP * number
        parts += token(24, y, number)
        if number in found:
            expert, slot = found[number]
            to = TOP + 2 * STEP * "abc".index(expert) + 10
            parts += [line(24 + BOX + 4, y + BOX / 2, 224, to + BOX / 2), *token(230 + STEP * slot, to, number)]
        else:
            parts += [arrow(24 + BOX + 4, y + BOX / 2, 224, y + BOX / 2), text(230, y + 18, "passes by: MLP 1 is full")]
    return document("Seven tokens, three experts with room for three tokens each", 620, TOP + STEP * 7 + 16, parts)
