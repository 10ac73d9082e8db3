"""Figure of chapter 20: which heads of queries read which keys and values, and what a row of qkv and the cache take."""
from svg import bar, document, key, line, rect, text

NH, BOX, STEP, TOP = 8, 22, 30, 80  # the heads that are drawn
LAYERS, HEADS, HS = 32, 32, 128     # of Llama 8B, whose KV is 8
# What is drawn, its KV, and the KV of Llama 8B that corresponds to it.
WAYS = (("each head has its own", 8, 32), ("four heads share", 2, 8), ("all heads share", 1, 1))


def groups(x, kv):
    """Heads of queries, and under them their keys and values."""
    parts = []
    for head in range(NH):
        group = head * kv // NH
        left, to, colour = x + STEP * head, x + STEP * (NH / kv * (group + 0.5) - 0.5), "ab"[group % 2]
        parts += [line(left + BOX / 2, TOP + BOX, to + BOX / 2, TOP + 60), rect(left, TOP, BOX, BOX, colour)]
        if head == NH // kv * group:
            parts += [rect(to, TOP + 60, BOX, BOX, colour), rect(to, TOP + 86, BOX, BOX, colour)]
    return parts


def picture():
    parts = [text(20, 30, "Eight heads of queries, and the keys and values that they read", "title"),
             text(20, 232, "Numbers of Llama 8B's row of qkv, and a token's cache in bf16", "title"),
             *(text(20, TOP + y, name) for name, y in (("q", 16), ("k", 76), ("v", 102))),
             *key(60, 318, "matrix", "q"), *key(120, 318, "c", "k and v")]
    for i, (words, drawn, kv) in enumerate(WAYS):
        x, row, cache = 60 + 265 * i, (HEADS + 2 * kv) * HS, 2 * LAYERS * kv * HS * 2 // 1024
        parts += [text(x, 64, words), *groups(x, drawn), text(x, 298, f"KV = {kv}: {cache} KiB"),
                  *bar(x, 252, 200 / 12288, ((HEADS * HS, "matrix"), (2 * kv * HS, "c")), f"{row:,}")]
    return document("Heads of queries that share keys and values", 850, 344, parts)
