"""Figure of the schedules of a pipeline: what each stage does when, as the lists of llmc/ranks/schedule.h say."""
import collections
import os
import shlex
import subprocess
import tempfile

from svg import document, key, rect, text

HERE = os.path.dirname(os.path.abspath(__file__))
STAGES, MICRO_BATCHES = 4, 8
LEFT, UNIT, ROW = 84, 10.4, 24  # UNIT: the width of a unit of time
FORWARD, BACKWARD = 2, 4  # times of a stage. A transfer takes none
PANELS = (("afab", 1, "all forwards, then all backwards"), ("1f1b", 1, "one forward, one backward, in turn"),
          ("interleaved", 2, "a stage has two chunks of the model; the paler boxes are the second one"))
Box = collections.namedtuple("Box", "stage action micro_batch chunk slot begin width")


def compile_passes(folder):
    """Builds the program that prints the passes of all stages."""
    program = os.path.join(folder, "pipeline_passes")
    subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-I", os.path.join(HERE, "..", ".."), "-o", program,
                    os.path.join(HERE, "pipeline_passes.c"), "-lm"], check=True)
    return program


def read_passes(program, schedule, chunks):
    """The boxes of all stages, one stage after another."""
    lines = subprocess.run([program, schedule, str(STAGES), str(chunks), str(MICRO_BATCHES)], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    boxes = []
    for words in map(str.split, lines):
        action, (stage, micro_batch, chunk, slot, begin) = words[2], map(int, (words[1], *words[4::2]))
        width = (FORWARD if action == "FORWARD" else BACKWARD) // chunks
        boxes.append(Box(stage, action, micro_batch, chunk, slot, begin * FORWARD // chunks, width))
    return sorted(boxes, key=lambda box: (box.stage, box.begin))


def draw_box(box, top):
    """A forward is blue, a backward orange. The second chunk is paler, with digits like the text beside it."""
    x, y, width = LEFT + UNIT * box.begin, top + ROW * box.stage, UNIT * box.width - 1
    shape = rect(round(x, 1), y, round(width, 1), ROW - 4, "b" if box.action == "FORWARD" else "a")
    shape = f'<g opacity="0.45">{shape}</g>' if box.chunk else shape
    colour = "small middle" if box.chunk else "small middle paper"
    return [shape, text(round(x + width / 2, 1), y + 14, box.micro_batch, colour)]


def panel(program, top, schedule, chunks, words):
    boxes = read_passes(program, schedule, chunks)
    end = max(box.begin + box.width for box in boxes)
    idle = 1 - sum(box.width for box in boxes) / (STAGES * end)
    right = LEFT + UNIT * 66 + 60
    slots_of = "slots" if chunks == 1 else "slots of half a stage"
    parts = [text(24, top, f"{schedule}: idle for {100 * idle:.1f} % of the step", "title"),
             text(24, top + 20, words), text(right, top + 20, slots_of, "end")]
    for stage in range(STAGES):
        y = top + 30 + ROW * stage
        slots = 1 + max(box.slot for box in boxes if box.stage == stage)
        parts += [text(24, y + 14, f"stage {stage}"), rect(LEFT, y, round(UNIT * end - 1, 1), ROW - 4, "matrix"),
                  text(right, y + 14, slots, "end")]
    return parts + [part for box in boxes for part in draw_box(box, top + 30)]


def picture():
    with tempfile.TemporaryDirectory() as folder:
        program = compile_passes(folder)
        parts = [part for i, row in enumerate(PANELS) for part in panel(program, 32 + 164 * i, *row)]
    for x, name, words in ((LEFT, "b", "forward"), (LEFT + 96, "a", "backward"), (LEFT + 206, "matrix", "idle")):
        parts += key(x, 502, name, words)
    parts.append(text(830, 514, "slots: the most micro-batches whose activations a stage holds", "end"))
    return document("What the stages of a pipeline do when, in three schedules", 854, 534, parts)
