"""Figure of chapter 18: how a question with four answers is scored. The numbers are those of the chapter's example."""
from svg import document, key, rect, text

CONTEXT = ("He", "takes", "the", "pot", "and")
COMPLETIONS = ((("pours", 2.0), ("the", 0.5), ("coffee", 1.0), ("in", 0.3), ("cups", 0.2)), (("sleeps", 3.5),),
               (("pours", 2.0), ("a", 1.8), ("cup", 0.4), ("cup", 4.2)), (("flies", 4.5), ("away", 0.9)))
WIDE, HIGH, LEFT, TOP = 58, 40, 20, 84


def token(column, row, name, word, loss=""):
    x, y = LEFT + WIDE * column, TOP + (HIGH + 12) * row
    return [rect(x, y, WIDE - 4, HIGH, name), text(x + WIDE / 2 - 2, y + 17, word, "middle"),
            text(x + WIDE / 2 - 2, y + 33, loss, "small middle")]


def picture():
    parts = [text(LEFT, 30, "One question, four sequences", "title"),
             text(LEFT, 62, "context: its losses do not count"),
             text(LEFT + 5 * WIDE, 62, "completion, and its losses"),
             text(660, 62, "sum", "middle"), text(730, 62, "mean", "middle")]
    sums = [sum(loss for _, loss in completion) for completion in COMPLETIONS]
    means = [total / len(completion) for total, completion in zip(sums, COMPLETIONS)]
    for row, completion in enumerate(COMPLETIONS):
        for i, word in enumerate(CONTEXT):
            parts += token(i, row, "matrix", word)
        for i, (word, loss) in enumerate(completion):
            parts += token(len(CONTEXT) + i, row, "frame", word, f"{loss:.1f}")
        for x, numbers, name in ((660, sums, "b"), (730, means, "c")):
            y = TOP + (HIGH + 12) * row
            best = numbers[row] == min(numbers)
            parts += [rect(x - 30, y + 34, 60, 4, name)] if best else []
            parts.append(text(x, y + 25, f"{numbers[row]:.2f}", "middle"))
    parts += [*key(LEFT, 300, "b", "the lowest sum picks the shortest"),
              *key(LEFT + 260, 300, "c", "the lowest mean picks the right one")]
    return document("How a question is scored", 780, 330, parts)
