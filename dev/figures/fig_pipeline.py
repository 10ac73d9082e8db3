"""Figure of the schedules of a pipeline: what each stage does when, timed from the lists of llmc/ranks/schedule.h."""
import collections
import os
import re
import shlex
import subprocess
import tempfile

from svg import document, rect, text

HERE = os.path.dirname(os.path.abspath(__file__))
STAGES, MICRO_BATCHES = 4, 8
LEFT, UNIT, ROW = 84, 10.4, 24  # UNIT: the width of a unit of time
FORWARD, BACKWARD = 2, 4  # times of a stage. A transfer takes none
PANELS = (("afab", 1, "all forwards, then all backwards"), ("1f1b", 1, "one forward, one backward, in turn"),
          ("interleaved", 2, "a stage has two chunks of the model; the paler boxes are the second one"))
Instruction = collections.namedtuple("Instruction", "stage action micro_batch chunk slot")
Box = collections.namedtuple("Box", "stage action micro_batch chunk begin width")


def compile_lists(folder):
    """Builds the program that writes the lists."""
    program = os.path.join(folder, "pipeline_lists")
    subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-I", os.path.join(HERE, "..", ".."), "-o", program,
                    os.path.join(HERE, "pipeline_lists.c")], check=True)
    return program


def read_lists(program, schedule, chunks):
    """The instructions of all stages, one stage after another."""
    lines = subprocess.run([program, schedule, str(STAGES), str(chunks), str(MICRO_BATCHES)], check=True,
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    pattern = r"stage (\d+) (\w+) micro-batch (\d+) chunk (\d+) slot (\d+)"
    return [Instruction(int(stage), action, *map(int, numbers))
            for stage, action, *numbers in (re.match(pattern, line).groups() for line in lines)]


class Stage:
    """A stage on its way through its list."""
    def __init__(self, instructions):
        self.left, self.now, self.boxes = collections.deque(instructions), 0, []

    def go_on(self, chunks, sent):
        """Does what it can. sent: when data were made, by who waits for them."""
        while self.left:
            i = self.left[0]
            piece = i.chunk * STAGES + i.stage
            if i.action in ("GET_INPUT", "GET_GRAD"):
                arrived = sent.get((i.action, i.micro_batch, piece))
                if arrived is None:
                    return
                self.now = max(self.now, arrived)
            elif i.action == "PUT_OUTPUT":
                sent["GET_INPUT", i.micro_batch, piece + 1] = self.now
            elif i.action == "PUT_GRAD":
                sent["GET_GRAD", i.micro_batch, piece - 1] = self.now
            else:
                width = (FORWARD if i.action == "FORWARD" else BACKWARD) // chunks
                self.boxes.append(Box(i.stage, i.action, i.micro_batch, i.chunk, self.now, width))
                self.now += width
            self.left.popleft()


def play(instructions, chunks):
    """The boxes of all stages, and when the last one ends."""
    stages, sent = [Stage(i for i in instructions if i.stage == s) for s in range(STAGES)], {}
    while any(stage.left for stage in stages):
        left = [len(stage.left) for stage in stages]
        for stage in stages:
            stage.go_on(chunks, sent)
        if left == [len(stage.left) for stage in stages]:
            raise SystemExit("fig_pipeline.py: the stages wait for each other for ever")
    return [box for stage in stages for box in stage.boxes], max(stage.now for stage in stages)


def draw_box(box, top):
    """A forward is blue, a backward orange. The second chunk is paler, with digits like the text beside it."""
    x, y, width = LEFT + UNIT * box.begin, top + ROW * box.stage, UNIT * box.width - 1
    shape = rect(round(x, 1), y, round(width, 1), ROW - 4, "b" if box.action == "FORWARD" else "a")
    shape = f'<g opacity="0.45">{shape}</g>' if box.chunk else shape
    colour = "small middle" if box.chunk else "small middle paper"
    return [shape, text(round(x + width / 2, 1), y + 14, box.micro_batch, colour)]


def panel(program, top, schedule, chunks, words):
    instructions = read_lists(program, schedule, chunks)
    boxes, end = play(instructions, chunks)
    idle = 1 - sum(box.width for box in boxes) / (STAGES * end)
    right = LEFT + UNIT * 66 + 60
    slots_of = "slots" if chunks == 1 else "slots of half a stage"
    parts = [text(24, top, f"{schedule}: idle for {100 * idle:.1f} % of the step", "title"),
             text(24, top + 20, words), text(right, top + 20, slots_of, "end")]
    for stage in range(STAGES):
        y = top + 30 + ROW * stage
        slots = 1 + max(i.slot for i in instructions if i.stage == stage)
        parts += [text(24, y + 14, f"stage {stage}"), rect(LEFT, y, round(UNIT * end - 1, 1), ROW - 4, "matrix"),
                  text(right, y + 14, slots, "end")]
    return parts + [part for box in boxes for part in draw_box(box, top + 30)]


def picture():
    with tempfile.TemporaryDirectory() as folder:
        program = compile_lists(folder)
        parts = [part for i, row in enumerate(PANELS) for part in panel(program, 32 + 164 * i, *row)]
    for x, name, words in ((LEFT, "b", "forward"), (LEFT + 96, "a", "backward"), (LEFT + 206, "matrix", "idle")):
        parts += [rect(x, 502, 14, 14, name), text(x + 20, 514, words)]
    parts.append(text(830, 514, "slots: the most micro-batches whose activations a stage holds", "end"))
    return document("What the stages of a pipeline do when, in three schedules", 854, 534, parts)
