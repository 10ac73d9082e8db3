"""Figure of chapter 2: the merges of the chapter's three words as trees."""
from svg import document, line, lines, rect, text

PAIRS = ((" ", "t"), (" ", "a"), ("h", "e"), ("i", "n"), ("r", "e"), ("o", "n"), (" t", "he"), ("e", "r"))
WORDS, STEP, BOTTOM, RISE = ((60, "the"), (240, " then"), (514, " there")), 46, 184, 48


def node(x, y, token, number=""):
    """A token. Beside it stands the number of the merge that made it."""
    width = 16 + 9 * len(token)
    return [rect(x - width / 2, y - 14, width, 22, "matrix"), text(x, y + 2, token.replace(" ", "_"), "middle"),
            text(x + width / 2 + 4, y + 1, number, "small")]


def tree(left, word):
    """Replays the merges over the letters of a word. A token is (text, x, y)."""
    tokens = [(letter, left + STEP * i, BOTTOM) for i, letter in enumerate(word)]
    parts = [part for letter, x, y in tokens for part in node(x, y, letter)]
    for number, pair in enumerate(PAIRS, 1):
        for i in range(len(tokens) - 2, -1, -1):
            if (tokens[i][0], tokens[i + 1][0]) == pair:
                children = tokens[i:i + 2]
                x, y = sum(child[1] for child in children) / 2, min(child[2] for child in children) - RISE
                parts += [line(x, y + 8, child[1], child[2] - 14) for child in children]
                tokens[i:i + 2] = [("".join(pair), x, y)]
                parts += node(x, y, "".join(pair), str(number))
    return parts


def picture():
    parts = [text(24, 32, "Three words, and the merges that join their letters", "title"),
             *[part for left, word in WORDS for part in tree(left, word)],
             *lines(24, 226, "_ is a space. Beside a box is the number of its merge. Boxes with no line up are tokens.",
                    "Merge 8 joins e and r. It finds no such pair in _there: e is in he by now, and r is in re.")]
    return document("Merges as trees", 840, 262, parts)
