"""dev/tensorboard.py: the points that it writes, to a stand-in for the package."""
import json
import os

from tools import logged_run, new_folder, path, python, read, write

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


def run(*arguments, status=0, stand_in=STAND_IN):
    write("hidden/tensorboard/__init__.py", ""), write("hidden/tensorboard/summary.py", stand_in)
    return python("tensorboard.py", *arguments, status=status, PYTHONPATH=path("hidden"))


def test_points():
    """Every number of the logs, by its step. A second call replaces a run's files, and no others."""
    new_folder("tb"), logged_run("a", lambda step: 5.0 - 0.01 * step, 20, 10)
    write("a/main.log", read("a/main.log") + b"s:20 mmlu:0.2700\n")
    write("tb/a/notes.txt", "mine"), write("tb/a/events.out.tfevents.0", "an old one")
    assert run("a") == ("To see them: tensorboard --logdir tb\n", "")
    found = [json.loads(line) for line in read("tb/a/events.out.tfevents.1").splitlines()]
    for point in (["loss/val", 0, 5.1], ["accuracy/hellaswag", 0, 0.25], ["loss/train", 1, 4.99],
                  ["optimizer/learning_rate", 0, 6e-4], ["optimizer/gradient_norm", 0, 0.5],
                  ["speed/tokens_per_second", 0, 500.0], ["accuracy/mmlu", 20, 0.27]):
        assert point in found, (point, found)
    assert len(found) == 4 * 20 + 2 * 3 + 1
    assert sorted(os.listdir(path("tb/a"))) == ["events.out.tfevents.1", "notes.txt"]


def test_refused():
    assert run("a", status=1, stand_in="raise ImportError('hidden')\n")[1] == (
        "tensorboard.py: needs the tensorboard package: python3 -m pip install tensorboard (hidden)\n")
