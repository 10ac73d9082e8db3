"""dev/tensorboard.py: the points that it writes, to a stand-in for the package and, where that is here, as TensorBoard
reads them."""
import json
import math
import os
import re
import subprocess
import sys

import pytest

from tools import WORK, logged_run, new_folder, path, python, read, train_line, write

STAND_IN = """
import json, os
class Writer:
    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.file = open(os.path.join(folder, "events.out.tfevents.1"), "w")
    def add_scalar(self, tag, data, step):
        self.file.write(json.dumps([tag, step, data]) + "\\n")
    def close(self):
        self.file.close()
"""
READ_BACK = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray
events = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0}).Reload()
for tag in events.Tags()["tensors"]:
    print(tag, len(events.Tensors(tag)), *(make_ndarray(event.tensor_proto) for event in events.Tensors(tag)[:3]))
"""


def loss(step):
    return 5.0 - 0.01 * step


def run(*arguments, status=0, stand_in=STAND_IN):
    write("hidden/tensorboard/__init__.py", ""), write("hidden/tensorboard/summary.py", stand_in or "")
    return python("tensorboard.py", *arguments, status=status, PYTHONPATH=path("hidden") if stand_in else "")


def points(folder):
    return [json.loads(line) for line in read(f"{folder}/events.out.tfevents.1").splitlines()]


def test_points():
    """Every number of the logs, by its step."""
    new_folder("tb"), logged_run("a", loss, 20, 10), logged_run("x/b", loss, 10, 10, accuracy=False)
    write("a/main.log", read("a/main.log") + b"s:20 mmlu:0.2700\n")
    out, err = run("a", "x/b")
    assert (out, err) == ("To see them: tensorboard --logdir tb\n", "") and len(points("tb/b")) == 4 * 10 + 2
    found = points("tb/a")
    for point in (["loss/val", 0, 5.1], ["accuracy/hellaswag", 0, 0.25], ["loss/train", 0, 5.0],
                  ["optimizer/learning_rate", 0, 6e-4], ["optimizer/gradient_norm", 0, 0.5],
                  ["speed/tokens_per_second", 0, 500.0], ["loss/train", 1, 4.99], ["accuracy/mmlu", 20, 0.27]):
        assert point in found, (point, found)
    assert len(found) == 4 * 20 + 2 * 3 + 1
    write("tb/a/notes.txt", "mine"), write("tb/a/events.out.tfevents.0", "an old one")
    run("a")
    assert points("tb/a") == found and sorted(os.listdir(path("tb/a"))) == ["events.out.tfevents.1", "notes.txt"]


def test_refused():
    logged_run("a", loss, 5, 5)
    assert run("a", status=1, stand_in="raise ImportError('hidden')\n")[1] == (
        "tensorboard.py: needs the tensorboard package: python3 -m pip install tensorboard (hidden)\n")
    assert re.fullmatch(r"tensorboard\.py: nowhere: No such file[^\n]*\n", run("nowhere", status=1)[1])


def test_tensorboard_reads_it():
    found = [sys.executable, "-c", "import tensorboard.summary"]  # here dev/tensorboard.py may have the name
    if subprocess.run(found, cwd=WORK, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tensorboard package (python3 -m pip install tensorboard)")
    new_folder("tb4"), logged_run("a", loss, 30, 10, change={("trl", 1): train_line(1, math.nan, norm=math.inf)})
    run("a", "--out", "tb4", stand_in=None)
    shown = subprocess.run([sys.executable, "-c", READ_BACK, path("tb4/a")], cwd=WORK, check=True, capture_output=True,
                           text=True).stdout
    assert "loss/train 30 5.0 nan 4.98\n" in shown and "optimizer/gradient_norm 30 0.5 inf 0.5\n" in shown, shown
