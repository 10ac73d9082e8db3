"""Figure of chapter 5: the online softmax goes along a row of scores. What m, l and lse are after each key."""
import math

from plots import HEIGHT, LEFT, TOP, WIDTH, place
from svg import axes, document, key, rect, text

SCORES = (0.5, -0.4, 0.2, 1.6, 0.1, 1.2, -0.8, 2.9, 0.7, 2.1, 1.1, 1.8)
LOW, HIGH, MOST = -1, 4, 4  # of the scores, and of l


def steps(values, to_pixels, colour):
    """A level stroke for each key."""
    return [rect(round(x, 1), round(y - 1, 1), 25, 3, colour)
            for x, y in (to_pixels((i + 0.05, value)) for i, value in enumerate(values))]


def picture():
    states, m, l = [], -math.inf, 0.0
    for score in SCORES:
        m, old = max(m, score), m
        l = l * math.exp(old - m) + math.exp(score - m)
        states.append((m, l, m + math.log(l)))
    left, right = place(LEFT, (0, len(SCORES)), (LOW, HIGH)), place(LEFT + 428, (0, len(SCORES)), (0, MOST))
    across = [((i + 0.5) / len(SCORES), str(i)) for i in range(len(SCORES))]
    up = [((tick - LOW) / (HIGH - LOW), str(tick)) for tick in range(LOW, HIGH + 1)]
    parts = [text(LEFT, 28, "Scores, key by key", "title"), *axes(LEFT, TOP, WIDTH, HEIGHT, across, up),
             text(LEFT + 428, 28, "The sum l of exp(score - m)", "title"),
             *axes(LEFT + 428, TOP, WIDTH, HEIGHT, across, [(tick / MOST, str(tick)) for tick in range(MOST + 1)])]
    for i, score in enumerate(SCORES):
        (x, zero), (_, y) = left((i + 0.2, 0)), left((i, score))
        parts.append(rect(round(x, 1), round(min(y, zero), 1), 16, round(abs(y - zero), 1), "matrix"))
    parts += [*steps([state[0] for state in states], left, "a"), *steps([state[2] for state in states], left, "c"),
              *steps([state[1] for state in states], right, "b"), *key(LEFT + 16, TOP, "a", "m: the largest so far"),
              *key(LEFT + 16, TOP + 22, "c", "lse = m + log(l)"),
              *[text(round(right((i + 0.5, 0))[0]), round(right((i, states[i][1]))[1] + 20),
                     f"times {math.exp(states[i - 1][0] - states[i][0]):.2f}", "small middle") for i in (3, 7)]]
    return document("The online softmax along a row", 840, 286, parts)
