"""Figure of chapter 16: how buckets travel behind the computation, and what each stage keeps on a rank."""
from svg import bar, document, key, lines, rect, text

LEFT, COMPUTE, SEND = 150, 84, 138  # where the two streams are drawn
BACKWARD, GRADIENT, REST, UPDATE, GATHER, FORWARD = 76, 50, 70, 12, 25, 38  # widths, which stand for times
BLOCKS = 4
# MB of GPU memory on each of 8 ranks: parameters, gradients, moments and master copy, slots (`make chapter-16`).
STAGES = ((249.0, 497.9, 1493.7, 0.0), (249.0, 497.9, 186.7, 0.0), (249.0, 62.2, 186.7, 214.4),
          (31.1, 62.2, 186.7, 321.6))
NAMES = ("a", "b", "c", "matrix")


def piece(x, y, width, name, bucket):
    """Some time of a stream, with the number of its bucket above."""
    return [rect(x, y, width - 2, 20, name), text(x + width / 2 - 1, y - 5, bucket, "small middle")]


def backward_pass():
    """The backward of 4 blocks, and their gradients on their way. Returns also when the last bucket has arrived."""
    parts, sent = [], 0
    for i in range(BLOCKS):
        done = LEFT + BACKWARD * (i + 1)
        parts += piece(done - BACKWARD, COMPUTE, BACKWARD, "a", f"block {BLOCKS - i}")
        parts += piece(max(sent, done), SEND, GRADIENT, "b", BLOCKS - i)
        sent = max(sent, done) + GRADIENT
    return parts + piece(sent, SEND, REST, "b", 0), sent + REST


def update(begin):
    """The update, bucket by bucket, and the next forward, which waits for the parameters of buckets 0 and 1."""
    parts, arrived, gathered = [], begin + UPDATE, []
    for bucket in range(BLOCKS + 1):
        width = GATHER * (REST / GRADIENT if bucket == 0 else 1)
        parts += [rect(begin + UPDATE * bucket, COMPUTE, UPDATE - 2, 20, "c")]
        parts += piece(arrived, SEND, width, "b", bucket)
        arrived += width
        gathered.append(arrived)
    for i in range(BLOCKS):
        parts += piece(gathered[1] + FORWARD * i, COMPUTE, FORWARD, "matrix", i + 1)
    return parts + [text(begin, COMPUTE - 5, "update", "small"),
                    text(gathered[1] + 2 * FORWARD, COMPUTE - 22, "the next forward", "small middle")]


def streams():
    passes, end = backward_pass()
    return [text(24, 32, "Stage 1: buckets leave while the backward pass goes on", "title"),
            text(24, COMPUTE + 14, "computation"), text(24, SEND + 14, "communication"), *passes, *update(end),
            text(LEFT + BLOCKS * BACKWARD + 6, COMPUTE + 14, "waits for 1 and 0", "small"),
            *lines(LEFT + BACKWARD, SEND + 40, "gradients, bucket by bucket"),
            *lines(end + UPDATE, SEND + 40, "updated parameters")]


def memory():
    parts = [text(24, 226, "GPT-2 124M on 8 ranks: MB on each", "title")]
    for stage, sizes in enumerate(STAGES):
        y = 246 + 30 * stage
        parts += [text(24, y + 15, f"stage {stage}"), *bar(LEFT, y, 1 / 4, zip(sizes, NAMES), f"{sum(sizes):.0f}")]
    keys = (("parameters", 0), ("gradients", 120), ("moments, master copy", 230), ("room for buckets", 424))
    for (words, x), name in zip(keys, NAMES):
        parts += key(LEFT + x, 372, name, words)
    return parts


def picture():
    return document("Buckets behind the computation, and the stages of ZeRO", 840, 404, [*streams(), *memory()])
