"""Figure of chapter 20: a block of GPT-2 beside a block of a Llama, and what differs."""
from svg import arrow, document, line, lines, rect, text

ROWS = (  # GPT-2's step, the other model's, is it another one?
    ("wte + wpe", "wte", True), ("LayerNorm", "RMSNorm", True), ("qkv: 3 C", "q, k, v: fewer heads of k, v", True),
    (None, "RoPE turns q and k", True), ("attention", "attention", False), ("attproj, + residual",) * 2 + (False,),
    ("LayerNorm", "RMSNorm", True), ("fc: 4 C", "gate and up: 8/3 C each", True),
    ("GELU", "silu(gate) * up", True), ("fcproj, + residual",) * 2 + (False,))
WIDTH, HEIGHT, STEP, TOP = 210, 26, 38, 58


def column(x, title, names, changed):
    parts, before = [text(x + WIDTH / 2, 34, title, "title middle")], None
    for i, name in enumerate(names):
        y = TOP + STEP * i
        if name is None:
            continue
        if before is not None:
            parts.append(arrow(x + WIDTH / 2, TOP + STEP * before + HEIGHT + 1, x + WIDTH / 2, y - 1))
        parts += [rect(x, y, WIDTH, HEIGHT, "matrix"), text(x + WIDTH / 2, y + 18, name, "middle")]
        parts += [rect(x, y, 6, HEIGHT, "a")] if changed[i] else []
        before = i
    return parts


def bracket(x, first, last, *words):
    top, bottom = TOP + STEP * first, TOP + STEP * last + HEIGHT
    return [line(x, top, x, bottom), line(x - 6, top, x, top), line(x - 6, bottom, x, bottom),
            *lines(x + 10, (top + bottom) / 2 - 5, *words)]


def picture():
    ours, theirs, changed = zip(*ROWS)
    parts = [*column(24, "GPT-2", ours, changed), *column(272, "Llama", theirs, changed),
             *bracket(500, 1, 9, "L times;", "then a norm", "and the head"), rect(512, TOP + 4, 6, HEIGHT - 8, "a"),
             text(524, TOP + 18, "differs")]
    return document("A block of GPT-2 and a block of a Llama", 620, TOP + STEP * len(ROWS), parts)
