"""dev/tensorboard.py: which points a run gives, and the event files, read back with TensorBoard's own reader."""
import importlib.util
import math
import os
import re
import signal
import subprocess
import sys

import pytest

from tools import ROOT, WORK, logged_run, new_folder, path, read, train_line, wait_until, write

PROGRAM = os.path.join(ROOT, "dev", "tensorboard.py")
SPEC = importlib.util.spec_from_file_location("event_files", PROGRAM)
event_files = importlib.util.module_from_spec(SPEC)
sys.dont_write_bytecode = True
before = list(sys.path)
SPEC.loader.exec_module(event_files)
sys.path[:] = before
START = {"starts": [{"time": "2026-01-02T03:04:05Z"}, {"time": "2026-02-02T03:04:05Z"}]}
BEGAN = 1767323045
HERE = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")


def has_package():
    return subprocess.run([sys.executable, "-c", "import tensorboard.summary"], env=HERE, cwd=WORK, check=False,
                          capture_output=True).returncode == 0


package = pytest.mark.skipif(not has_package(), reason="no tensorboard package (python3 -m pip install tensorboard)")


def run(*arguments, status=0, **environment):
    result = subprocess.run([sys.executable, PROGRAM, *arguments], cwd=WORK, env=dict(HERE, **environment), text=True,
                            capture_output=True, timeout=120, check=False)
    assert result.returncode == status, (arguments, result)
    return result.stdout, result.stderr


def points(name):
    return event_files.points_of(event_files.run_logs.read_run(path(name)))


def loss(step):
    return 5.0 - 0.01 * step


# ---- Points: no package is needed ----


def test_points():
    """Every number of the logs, by its step; times from run.json and speed.log: a validation takes 10 seconds, a step
    2."""
    logged_run("a", loss, 20, 10, record=START)
    write("a/main.log", read(path("a", "main.log")) + b"s:20 mmlu:0.2700\n")
    found = points("a")
    assert found[:2] == [(0, "loss/val", 5.1, BEGAN), (0, "accuracy/hellaswag", 0.25, BEGAN)], found[:8]
    assert found[2:6] == [(0, "loss/train", 5.0, BEGAN), (0, "optimizer/learning_rate", 6e-4, BEGAN),
                          (0, "optimizer/gradient_norm", 0.5, BEGAN), (0, "speed/tokens_per_second", 500.0, BEGAN)]
    assert found[6] == (1, "loss/train", 4.99, BEGAN + 12.0) and found[-1][:3] == (20, "accuracy/mmlu", 0.27)
    assert len(found) == 4 * 20 + 2 * 3 + 1 and found[-1][3] == BEGAN + 60.0, found[-1]
    assert [point[0] for point in found] == sorted(point[0] for point in found)
    for time in ("yesterday", 5, None):
        logged_run("b", loss, 20, 10, record={"starts": [{"time": time}]})
        assert points("b")[-1][3] == pytest.approx(os.stat(path("b", "main.log")).st_mtime)
    logged_run("c", loss, 5, 5, speed=0)
    assert {point[3] for point in points("c")} == {os.stat(path("c", "main.log")).st_mtime}


def test_growth():
    """New points are added. Where a resumed run takes steps again, the old points are void from there on."""
    a, b, c = (1, "x", 1.0, 0), (2, "x", math.nan, 0), (2, "y", 3.0, 0)
    assert event_files.growth([], [a, b]) == (None, [a, b])
    assert event_files.growth([a, b], [a, (2, "x", float("nan"), 0), c]) == (None, [c])
    assert event_files.growth([a, b, c], [a, b, (2, "y", 4.0, 0)]) == (2, [b, (2, "y", 4.0, 0)])
    assert event_files.growth([a, b, c], [a]) == (2, []) and event_files.growth([a], [a]) == (None, [])
    assert event_files.growth([b], [a, b]) == (1, [a, b])


def test_refused():
    logged_run("a", loss, 5, 5)
    hidden = {"PYTHONPATH": os.path.dirname(write("hidden/tensorboard.py", "raise ImportError('hidden')\n"))}
    err = run("a", status=1, **hidden)[1]
    assert err == "tensorboard.py: needs the tensorboard package: python3 -m pip install tensorboard (hidden)\n", err
    assert not os.path.exists(path("tb"))
    for words, says in ((["a", "./a"], "a run is given twice"), (["a", "--every", "0"], "expected are seconds"),
                        ([], "required: RUN")):
        assert re.fullmatch(rf"tensorboard\.py: [^\n]*{says}[^\n]*\n", run(*words, status=1)[1]), words


# ---- Event files ----

READ_BACK = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
print(json.dumps({tag: [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
"""


def scalars(folder):
    """What TensorBoard shows of a folder: tag -> [(step, value, time)]."""
    result = subprocess.run([sys.executable, "-c", READ_BACK, path(folder)], env=HERE, cwd=WORK, check=True,
                            capture_output=True, text=True)
    return event_files.run_logs.json.loads(result.stdout)


def check_alike(folder, name):
    """TensorBoard shows the points of the logs, each once, in single precision."""
    wanted = {}
    for step, tag, value, seconds in points(name):
        wanted.setdefault(tag, []).append(pytest.approx((step, value, seconds), rel=1e-6, nan_ok=True))
    assert scalars(folder) == wanted


@package
def test_event_files():
    new_folder("tb")
    logged_run("a", loss, 30, 10, record=START, change={("trl", 7): train_line(7, math.nan, norm=math.inf)})
    logged_run("x/b", loss, 10, 10, accuracy=False)
    out, err = run("a", "x/b")
    assert err == "" and out.endswith("tb/b: 42 points, up to step 10\nTo see them: tensorboard --logdir tb\n"), out
    check_alike("tb/a", "a"), check_alike("tb/b", "x/b")
    write("tb/a/notes.txt", "mine"), write("tb/a/events.out.tfevents.0000000001.gpt2c", "an old one")
    logged_run("a", lambda step: 4.0, 40, 10, record=START)
    assert run("a", "--out", path("tb"))[1] == ""
    check_alike("tb/a", "a")  # no point of the old files
    assert len(os.listdir(path("tb", "a"))) == 2 and read("tb/a/notes.txt") == b"mine"


@package
def test_hostile_places():
    """Controls in names and lines reach no terminal; nothing is written through links."""
    name = "evil\x1b[31m"
    logged_run(name, loss, 5, 5)
    write(f"{name}/main.log", read(path(name, "main.log")) + b"\x1b]0;title\x07\n")
    out, err = run(name, "--out", "tb2")
    assert "\x1b" not in out + err and "1 line left out" in err and os.listdir(path("tb2")) == ["evil\\x1b[31m"]
    logged_run("a", loss, 5, 5)
    os.mkdir(path("tb3")), os.mkdir(path("elsewhere")), os.symlink(path("elsewhere"), path("tb3", "a"))
    assert re.fullmatch(r"tensorboard\.py: tb3/a: [^\n]*is a link[^\n]*\n", run("a", "--out", "tb3", status=1)[1])
    assert os.listdir(path("elsewhere")) == []


@package
def test_follow():
    """A run that begins, grows, and is resumed from an older step: each point once, in one file."""
    folder = new_folder("tb4")
    process = subprocess.Popen([sys.executable, PROGRAM, "live", "--follow", "--every", "0.1", "--out", folder],
                               cwd=WORK, env=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        def grown():
            files = [os.path.join(folder, "live", name) for name in os.listdir(path(folder, "live"))] \
                if os.path.isdir(path(folder, "live")) else []
            return sum(os.path.getsize(file) for file in files)

        assert process.stdout.readline().startswith("To see them")
        assert process.stdout.readline().startswith("waiting: live")
        for log in (b"s:0 tel:5.0000\n", b"s:0 tel:5.0000\n" + b"".join(b"s:%d trl:4.0000\n" % i for i in range(30)),
                    b"s:0 tel:5.0000\n" + b"".join(b"s:%d trl:3.0000\n" % i for i in range(20))):
            size = grown()
            write("new.log", log), os.makedirs(path("live"), exist_ok=True)
            os.replace(path("new.log"), path("live", "main.log"))
            wait_until(lambda: grown() > size, process)
            wait_until(lambda: len(scalars(f"{folder}/live").get("loss/train", [])) == log.count(b"trl"), process)
        assert {value for _, value, _ in scalars(f"{folder}/live")["loss/train"]} == {3.0}
        assert len(os.listdir(path(folder, "live"))) == 1
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, process.stderr.read()
