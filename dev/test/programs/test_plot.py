"""dev/run_logs.py and dev/plot.py: how the logs of a run are read, what is drawn of them, and that it is drawn.

Where this Python has no matplotlib, the tests that draw are skipped.
"""
import math
import os
import re
import sys

import pytest

import cli
from tools import ROOT, WORK, logged_run, path, python, read, train_line, write

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "dev"))
os.environ.setdefault("MPLCONFIGDIR", WORK)  # matplotlib's cache: nothing is left in the home folder

import plot  # noqa: E402
import run_logs  # noqa: E402

drawn = pytest.mark.skipif(plot.MISSING is not None, reason="this Python has no matplotlib")


def falling(step):
    return 3.0 + 8.0 * math.exp(-step / 30) + 0.01 * math.sin(7 * step)


def make_run(name, steps=200, every=20, size=(12, 768), data="fineweb10B/fineweb", **options):
    """A run's folder."""
    start = {"event": "start", "options": {"val-data": f"dev/data/{data}_val_*.bin", **options},
             "tokens_per_step": 1000, "model": {"layers": size[0], "channels": size[1]}}
    return logged_run(name, falling, steps, every, record=[start])


def read_lines(*lines, torn=""):
    return run_logs.read_run(write("lines/some.log", "".join(line + "\n" for line in lines) + torn))


# ---- Reading ----


def test_lines_of_main_log():
    run = read_lines("s:0 tel:11.0000", "s:0 eval:0.2500", "s:0 mmlu:0.2600", "s:0 trl:10.9 lr:0.000001 norm:15.37",
                     "s:1 trl:9.5000 lr:6e-04 norm:3.00", "s:2 tel:9.0000", "s:2 trl:nan lr:0.1 norm:-inf",
                     "s:3 trl:5.0", "s:4 trl:4.0 lr:0.1 norm", "junk", "s:-1 tel:1", "\x00\xff", torn="s:4 tel:3.1")
    assert list(run.loss) == [0, 1, 2, 3] and (run.loss[0], run.loss[1], run.loss[3]) == (10.9, 9.5, 5.0), run.loss
    assert math.isnan(run.loss[2]) and run.norm == {0: 15.37, 1: 3.0, 2: -math.inf}
    assert (run.lr, run.val) == ({0: 1e-6, 1: 6e-4, 2: 0.1}, {0: 11.0, 2: 9.0})
    assert (run.hellaswag, run.mmlu) == ({0: 0.25}, {0: 0.26}) and run.last_step == 4


def test_steps_twice():
    """A resumed run appends: what came after the checkpoint has not happened."""
    lines = [train_line(step, 10 - step).strip() for step in range(6)]
    run = read_lines("s:0 tel:20.0", *lines[:3], "s:3 tel:23.0", *lines[3:], "s:5 tel:25.0", "s:6 tel:26.0",
                     "s:3 trl:99.0", "s:4 tel:14.0")
    assert run.loss == {0: 10.0, 1: 9.0, 2: 8.0, 3: 99.0} and list(run.norm) == [0, 1, 2], vars(run)
    assert run.val == {0: 20.0, 3: 23.0, 4: 14.0}, run.val


def test_record():
    """The last start counts, and its end. A line that is torn or no event is left out."""
    folder, end = make_run("record"), '{"event": "end", "step": 5}\n'
    start = '{"event": "start", "n": %s}\n'
    write("record/run.jsonl", start % 1 + end + start % 2 + '{"event": "other"}\n' + (start % 3)[:-1])
    run = run_logs.read_run(folder)
    assert run.start["n"] == 2 and run.end == {} and len(run.loss) == len(run.tps) == 200
    write("record/run.jsonl", start % 4 + "{\n[1]\n" + "[" * 100000 + "\n" + end)
    run = run_logs.read_run(folder)
    assert (run.start["n"], run.end["step"], run.part("model"), run.tokens_per_step) == (4, 5, {}, None)


def test_labels():
    assert run_logs.labels(["/x/run", "/y/run/main.log", "/z/\x1b/"]) == ["x/run", "y/run", "\\x1b"]


# ---- Pictures ----


HELLASWAG = "GPT-2 124M: 29.4 %"


@pytest.mark.parametrize("changes, wanted", (
    ({"size": (2, 64)}, []), ({"data": "edu_fineweb10B/edu_fineweb"}, [HELLASWAG, "GPT-2 124M, edu_fineweb: 3.29"]),
    ({"size": (24, 1024), "data": "tinyshakespeare/tiny_shakespeare"}, ["GPT-2 350M: 37.5 %"]),
    ({"eval-examples": "10"}, ["GPT-2 124M, fineweb: 3.42"])))
def test_references_fit_the_run(changes, wanted):
    """Each line exactly where it should be: by the run's size, the data of its loss, and all of HellaSwag."""
    lines = plot.references(run_logs.read_run(make_run("referenced", **changes)))
    assert [text for _, _, text in lines] == wanted


def panels_of(*runs, axis="steps"):
    """The panels of a picture that is not written, by their titles' first word."""
    figure = plot.picture(list(map(run_logs.read_run, runs)), run_logs.labels(runs), axis)
    return {axes.get_title("left").split()[0]: axes for axes in figure.axes}


def curves(axes, color=0):
    """The curves of a run's colour."""
    return [line for line in axes.lines if line.get_color() == plot.COLORS[color]]


@drawn
def test_what_is_drawn():
    """The values, their mean and the validation losses of both runs, and OpenAI's lines."""
    assert list(panels_of(write("short.log", "s:0 trl:5.0\ns:1 trl:4.0\n"))) == ["Loss"]
    one, two = make_run("one"), make_run("two $x_1$ & <b>", steps=100)
    loss = panels_of(one, two)["Loss"]
    values, mean, val = curves(loss)
    y = [round(falling(step), 4) for step in range(200)]
    assert list(values.get_ydata()) == y and list(mean.get_xdata()) == list(range(2, 198))
    assert abs(mean.get_ydata()[10] - sum(y[10:15]) / 5) < 1e-12
    assert list(val.get_xdata()) == list(range(0, 201, 20)) and len(curves(loss, 1)[0].get_ydata()) == 100
    assert [label.get_text() for label in loss.get_legend().get_texts()] == [
        " one, val 3.101", r" two \$x_1\$ & <b>, val 3.391"]
    panels = panels_of(one, axis="tokens")
    assert list(panels) == ["Loss", "HellaSwag", "Learning", "Gradient", "Tokens"]
    panel = panels["HellaSwag"]
    assert [text.get_text() for text in panel.texts] == [HELLASWAG, "chance"]
    assert [line.get_ydata()[0] for line in panel.lines[1:]] == [0.294, 0.25]
    assert list(curves(panel)[0].get_xdata()) == list(range(0, 200001, 20000)) and panel.get_xlabel() == "tokens"


@pytest.mark.long
@drawn
def test_real_run():
    """What ./train_gpt2 writes, a resume included, is read and drawn."""
    words = [*cli.TINY, "-i", cli.text_file(), "-v", "10", "-s", "0", "-o", path("real")]
    for more in (["-x", "30"], ["-x", "60", "-y", "--allow-changes"]):
        cli.ran(*words, *more)
    run = run_logs.read_run(path("real"))
    assert list(run.loss) == list(run.tps) == list(range(60)) and max(run.val) == 60
    assert run.tokens_per_step == 32 and run.start["step"] == 30 and run.end["step"] == 60
    assert python("plot.py", "real", "-o", "real.png", "-x", "tokens") == ("real.png: real at step 60\n", "")
    assert read("real.png").startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments, says", (
    ("nowhere", "nowhere: No such file"), ("text.txt", "no line of a training log"),
    ("bare.log -x tokens", "no run.jsonl"), ("bare.log", "no matplotlib")))
def test_refusals(arguments, says):
    """One line on stderr, and no picture. The last row: where there is no matplotlib."""
    python_path = path("fake") if says == "no matplotlib" else ""
    if not python_path and plot.MISSING:
        pytest.skip("this Python has no matplotlib")
    write("bare.log", train_line(0, 5.0)), write("text.txt", "some text\n")
    write("fake/matplotlib/__init__.py", "raise ImportError('none here')\n")
    err = python("plot.py", *arguments.split(), status=1, PYTHONPATH=python_path)[1]
    assert re.fullmatch(rf"plot\.py: [^\n]*{says}[^\n]*\n", err) and not os.path.exists(path("curves.png")), err
