"""dev/run_logs.py and dev/plot.py: how the logs of a run are read, what is drawn of them, and that it is drawn.

Where this Python has no matplotlib, the tests that draw are skipped.
"""
import contextlib
import importlib.util
import io
import math
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

import cli
import tools
from tools import ROOT, WORK, Terminal, logged_run, new_folder, path, run_closed, train_line, wait_until

sys.dont_write_bytecode = True
PLOT = os.path.join(ROOT, "dev", "plot.py")
sys.path.insert(0, os.path.join(ROOT, "dev"))

import plot  # noqa: E402
import run_logs  # noqa: E402

os.environ.setdefault("MPLCONFIGDIR", WORK)  # matplotlib's cache: nothing is left in the home folder
SMALL = ["--size", "5x4", "--dpi", "50"]
LOSS = ["--panels", "loss"]  # a picture of one panel takes a third of the time, for tests of what is in it
GPT2 = {"124M": (12, 768), "350M": (24, 1024), "774M": (36, 1280), "1558M": (48, 1600)}


# ---- Runs and pictures ----


def write(name, text, add=False):
    return tools.write(name, (tools.read(name).decode() if add else "") + text)


def falling(step):
    return 3.0 + 8.0 * math.exp(-step / 30) + 0.01 * math.sin(7 * step)


def make_run(name, steps=200, every=20, size="124M", data="fineweb10B/fineweb", speed=True, info=True, hellaswag=True,
             tokens_per_step=1000, **more):
    """A run's folder, with a run.json unless info is False. more: entries of run.json."""
    record = None
    if info:
        layers, channels = GPT2.get(size, (2, 64))
        options = {"val-data": f"dev/data/{data}_val_*.bin", **more.pop("options", {})}
        record = {"options": options, "model": {"layers": layers, "channels": channels}, "starts": [{"from_step": 0}],
                  "tokens_per_step": tokens_per_step, **more}
    return logged_run(name, falling, steps, every, hellaswag, 500 if speed else None, record)


def read_lines(*lines, torn=""):
    return run_logs.read_run(write("lines/some.log", "".join(line + "\n" for line in lines) + torn))


def need_matplotlib():
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("this Python has no matplotlib")


def draws(*arguments):
    """Runs plot.py in this process. Returns what it printed on stdout and stderr."""
    need_matplotlib()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = plot.main([str(word) for word in arguments])
    assert status == 0, (arguments, status, err.getvalue())
    return out.getvalue(), err.getvalue()


def texts(*arguments):
    """All texts of a picture, which an SVG has as such."""
    draws(*arguments, "-o", path("picture.svg"))
    with open(path("picture.svg"), encoding="utf-8") as file:
        found = re.findall(r"<text[^>]*>([^<]*)</text>", file.read())
    return [text.replace("−", "-") for text in found]


def figure_of(*arguments):
    """The figure, not drawn yet, and its panels by name."""
    need_matplotlib()
    options = plot.parse_options([str(word) for word in arguments])
    plot.import_matplotlib()
    figure = plot.picture(plot.read_views(options), options)
    return figure, {axes.panel: axes for axes in figure.axes}


def refused(*arguments, says):
    """One line on stderr, which holds each text of `says`, and no picture."""
    err, before = io.StringIO(), os.getcwd()
    os.chdir(WORK)
    try:
        with contextlib.redirect_stderr(err):
            status = plot.main(list(arguments))
    except SystemExit as end:  # of argparse
        status = end.code
    finally:
        os.chdir(before)
    check_refusal(status, err.getvalue(), says)


def refused_as_a_user(*arguments, says, **environment):
    """The same of a program of its own."""
    done = subprocess.run([sys.executable, PLOT, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, cwd=WORK, env=dict(os.environ, **environment), timeout=tools.LIMIT)
    check_refusal(done.returncode, done.stderr, says)


def check_refusal(status, err, says):
    assert status == 1 and re.fullmatch(r"plot\.py: [^\n]+\n", err) and all(text in err for text in says), (says, err)
    assert not os.path.exists(path("curves.png"))


def pixels(name):
    """Width, height and the set of colours of a picture."""
    from matplotlib import image
    rows = (255 * image.imread(name)).round().astype(int)
    height, width, _ = rows.shape
    return width, height, {tuple(color) for color in rows[:, :, :3].reshape(-1, 3).tolist()}


# ---- Reading ----


def test_lines_of_main_log():
    run = read_lines("s:0 tel:11.0000", "s:0 eval:0.2500", "s:0 mmlu:0.2600", "s:0 trl:10.9 lr:0.000001 norm:15.37",
                     "s:1 trl:9.5000 lr:6e-04 norm:3.00", "s:2 tel:9.0000")
    assert (run.train.steps, run.train.loss) == ([0, 1], [10.9, 9.5]), vars(run.train)
    assert (run.train.lr, run.train.norm) == ([1e-6, 6e-4], [15.37, 3.0]), vars(run.train)
    assert (run.val.steps, run.val.loss) == ([0, 2], [11.0, 9.0])
    assert run.hellaswag.accuracy == [0.25] and run.mmlu.accuracy == [0.26]
    assert run.last_step == 2 and run.notes == [] and run.damaged == 0


def test_damaged_lines():
    run = read_lines("s:0 trl:5.0 lr:0.1 norm:1.0", "", "s:1 trl:4.0 lr:0.1 norm", "junk", "s:-1 tel:1", "s:1 tel:x",
                     "s:1 trl:4.5 lr:0.1 norm:1.0 ", "\x00\xff\x01", "s:2 tel:4.2500", " s:3 tel:4", "s:3 tel:1_0",
                     torn="s:4 tel:3.1")
    assert run.train.loss == [5.0] and run.val.steps == [2], (vars(run.train), vars(run.val))
    assert run.damaged == 9 and "9 lines left out" in run.notes[0], (run.damaged, run.notes)
    run = read_lines("s:0 trl:5.0 lr:0.1 norm:1.0\r", "s:1 trl:4.0 lr:0.1 norm:1.0\r")
    assert run.train.loss == [5.0, 4.0] and run.damaged == 0


def test_numbers_that_are_none():
    run = read_lines("s:0 trl:nan lr:0.1 norm:-nan", "s:1 trl:inf lr:0.1 norm:-inf", "s:2 tel:nan")
    assert math.isnan(run.train.loss[0]) and run.train.loss[1] == math.inf and run.train.norm[1] == -math.inf
    assert math.isnan(run.train.norm[0]) and math.isnan(run.val.loss[0])


def test_short_lines_of_older_logs():
    run = read_lines("s:0 tel:11.0", "s:0 trl:10.5", "s:1 trl:10.0 lr:0.1")
    assert run.train.loss == [10.5, 10.0] and run.train.lr == [None, 0.1]
    assert run.train.norm == [None, None] and run.damaged == 0


def test_steps_twice():
    """A program that appends after a resume without trimming: what came after the checkpoint has not happened."""
    lines = [train_line(step, 10 - step).strip() for step in range(6)]
    run = read_lines("s:0 tel:20.0", *lines[:3], "s:3 tel:23.0", *lines[3:], "s:5 tel:25.0", "s:6 tel:26.0",
                     "s:3 trl:99.0 lr:0.1 norm:1.0", "s:4 tel:14.0")
    assert run.train.steps == [0, 1, 2, 3] and run.train.loss[3] == 99.0, vars(run.train)
    assert (run.val.steps, run.val.loss) == ([0, 3, 4], [20.0, 23.0, 14.0]), vars(run.val)
    run = read_lines(*lines[:2], "s:1 eval:0.3", "s:1 eval:0.4")
    assert run.hellaswag.accuracy == [0.4] and run.train.steps == [0, 1]


def test_hours():
    folder = make_run("hours", steps=40, every=20)
    run = run_logs.read_run(folder)
    assert run.total_seconds() == 100.0  # 40 steps, and the 2 validations that precede one of them
    # After k updates: 2 s each, and 10 s for each validation that was before the last of them.
    expected = [0, 12 / 3600, (20 * 2 + 10) / 3600, (21 * 2 + 20) / 3600, 100 / 3600]
    got = run.hours([0, 1, 20, 21, 40])
    assert all(abs(a - b) < 1e-12 for a, b in zip(got, expected)), (got, expected)
    assert run.hours([41]) == [None] and len(run.hours(range(41))) == 41


def test_hours_with_holes():
    run = run_logs.read_run(write("holes/main.log", "s:0 tel:1.0\n") and path("holes"))
    assert run.hours([0, 5]) == [None, None]
    write("holes/speed.log", "s:10 ms:1 tps:1 sec:3600.0\njunk\ns:12 ms:1 tps:1 sec:7200.0\ns:13 ms:1 tps:nan sec:nan\n"
                             "s:14 ms:1.0 tps:1 se")
    run = run_logs.read_run(path("holes"))
    assert run.speed.steps == [10, 12], vars(run.speed)
    assert run.hours([0, 10, 11, 12, 13, 14]) == [None, None, 1.0, 1.5, 2.0, None]


def test_hours_over_a_resume():
    """speed.log goes on from its last line; one that was not trimmed counts as if it had been."""
    rows = [f"s:{step} ms:1000 tps:1 sec:{step + 1}.0\n" for step in range(10)]
    write("resumed/main.log", "".join(train_line(step, 5) for step in range(8)))
    write("resumed/speed.log", "".join(rows) + "s:6 ms:1000 tps:1 sec:20.0\ns:7 ms:1000 tps:1 sec:21.0\n")
    run = run_logs.read_run(path("resumed"))
    assert run.speed.steps == list(range(8)) and run.speed.sec[5:] == [6.0, 20.0, 21.0], vars(run.speed)
    assert [round(3600 * hour) for hour in run.hours(range(9))] == [0, 1, 2, 3, 4, 5, 6, 20, 21]


def test_run_json():
    run = run_logs.read_run(make_run("info", size="774M", data="edu_fineweb10B/edu_fineweb", tokens_per_step=524288))
    assert (run.size, run.data, run.tokens_per_step) == ("774M", "fineweb-edu", 524288)
    for broken in ("", "{", "[1]", "{\"a\":", "\xff\xfe", "[" * 100000):
        write("info/run.json", broken)
        run = run_logs.read_run(path("info"))
        assert run.info == {} and len(run.notes) == 1 and "run.json" in run.notes[0], (broken[:9], run.notes)
        assert run.size is None and run.data is None and run.tokens_per_step is None
    for value in ("9007199254740993", "-9007199254740993", "9" * 399, "9" * 5000, "1e999", "NaN", "-Infinity", "1" * 500
                  + ".5"):
        write("info/run.json", f'{{"tokens_per_step": {value}}}')
        run = run_logs.read_run(path("info"))
        assert run.info == {} and f"it holds the number {value[:40]})" in run.notes[0], (value[:9], run.notes)
    write("info/run.json", '{"a": 9007199254740992, "b": -2.5e-300}')
    assert run_logs.read_run(path("info")).info == {"a": 1 << 53, "b": -2.5e-300}
    write("info/run.json", '{"model": {"layers": [1], "channels": {}}, "tokens_per_step": "x", "options": 3}')
    run = run_logs.read_run(path("info"))
    assert run.size is None and run.data is None and run.tokens_per_step is None and len(run.train) == 200


def test_pipes_in_a_run_folder():
    """They are not waited for. A log with a name of the user's own may be one."""
    run = make_run("pipes")
    os.remove(path("pipes", "run.json"))
    os.mkfifo(path("pipes", "run.json"))
    assert "run.json: cannot be read: is a device or pipe" in run_logs.read_run(run).notes[0]
    os.rename(path("pipes", "main.log"), path("pipes", "other.log"))
    os.mkfifo(path("pipes", "main.log"))
    with pytest.raises(run_logs.LogError, match="main.log: cannot be read: is a device or pipe"):
        run_logs.read_run(run)
    os.mkfifo(path("pipes", "own"))
    with subprocess.Popen(["cp", path("pipes", "other.log"), path("pipes", "own")]):
        assert len(run_logs.read_run(path("pipes", "own")).train) == 200


def test_what_is_no_log():
    write("empty/other.txt", "some text\n")
    make_run("files")
    for name, says in (("nowhere", "no such"), ("empty", "holds no main.log"),
                       ("empty/other.txt", "no line of a training log"), ("files/speed.log", "the run's folder"),
                       ("files/run.json", "the run's folder")):
        with pytest.raises(run_logs.LogError, match=says):
            run_logs.read_run(path(name))
    assert run_logs.read_run(write("empty/main.log", "")).last_step == -1


def test_labels():
    def of(*paths):
        return run_logs.labels(paths)
    assert of("a/b", "a/c/") == ["b", "c"] and of("x/run", "y/run", "z") == ["x/run", "y/run", "z"]
    assert of("x/run/main.log", "y/run") == ["x/run", "y/run"] and of("x", "x") == ["x", "x"]
    assert of("/p/a/r", "/q/a/r", "/q/b/r") == ["p/a/r", "q/a/r", "b/r"] and of("/") == ["/"]


# ---- References ----


HELLASWAG, FINEWEB, EDU = "GPT-2 124M: 29.4 %", "GPT-2 124M, FineWeb: 3.42", "GPT-2 124M, FineWeb-Edu: 3.29"
REFERENCED = {"tiny": {"size": "other"}, "classic": {}, "edu": {"data": "edu_fineweb10B/edu_fineweb"},
              "shakespeare": {"size": "350M", "data": "tinyshakespeare/tiny_shakespeare"}, "unknown": {"data": "x"},
              "part": {"options": {"eval-examples": 10041}}, "whole": {"options": {"eval-examples": 10042}},
              "unscored": {"hellaswag": False}, "log": {"info": False, "speed": False}}


@pytest.mark.parametrize("words, wanted", (
    ("tiny", []), ("classic", [HELLASWAG, FINEWEB]), ("edu", [HELLASWAG, EDU]),
    ("classic edu", [HELLASWAG, FINEWEB, EDU]), ("shakespeare", ["GPT-2 350M: 37.5 %"]),
    ("classic --reference none", []),
    ("tiny --reference 1558M", ["GPT-2 1558M: 48.9 %", "GPT-2 1558M, FineWeb: 2.83"]),
    ("classic --reference 124M,774M", [HELLASWAG, FINEWEB, "GPT-2 774M: 43.2 %", "GPT-2 774M, FineWeb: 3.00"]),
    ("part", [FINEWEB]), ("whole", [HELLASWAG, FINEWEB]), ("unscored", [FINEWEB]),
    # Nothing is known of the model and the data but what the options say.
    ("log", []), ("log --reference 124M", [HELLASWAG]),
    ("log --reference 124M --data fineweb", [HELLASWAG, FINEWEB]),
    ("unknown --reference 124M --data fineweb", [HELLASWAG])))
def test_references_fit_the_runs(words, wanted):
    """Each line exactly where it should be: by the run's size, the data of its loss, and all of HellaSwag."""
    arguments = [make_run(word, **REFERENCED[word]) if word in REFERENCED else word for word in words.split()]
    options = plot.parse_options(arguments)
    assert [text for _, _, text in plot.references(plot.read_views(options), options.reference)] == wanted


@pytest.mark.long
def test_references_are_drawn():
    run = make_run("drawn", steps=400)
    for arguments, wanted in ((["--reference", "none"], False), ([], True)):
        _, panels = figure_of(run, "--panels", "loss,hellaswag", *arguments)
        for panel, text in (("hellaswag", "GPT-2 124M: 29.4 %"), ("loss", "GPT-2 124M, FineWeb: 3.42")):
            assert (text in [label.get_text() for label in panels[panel].texts]) == wanted, (panel, wanted)
    assert any(abs(line.get_ydata()[0] - 0.294) < 1e-9 for line in panels["hellaswag"].lines)
    assert any(abs(line.get_ydata()[0] - 3.42) < 1e-9 for line in panels["loss"].lines)


# ---- Pictures ----


def test_png():
    run = make_run("png")
    out, err = draws(run, "-o", path("png.png"), *SMALL)
    assert out == f"{path('png.png')}: png at step 200\n" and err == "", (out, err)
    width, height, colors = pixels(path("png.png"))
    assert (width, height) == (250, 200) and len(colors) > 100, (width, height, len(colors))
    for wanted in ((0xFF, 0xFF, 0xFF), (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)):  # and the two curves of a run alone
        assert any(max(abs(a - b) for a, b in zip(color, wanted)) < 40 for color in colors), wanted


@pytest.mark.long
def test_other_formats():
    run = make_run("formats")
    for name, start in (("a.pdf", b"%PDF-"), ("a.svg", b"<?xml"), ("A.PNG", b"\x89PNG")):
        draws(run, "-o", path(name), *SMALL, *LOSS)
        with open(path(name), "rb") as file:
            assert file.read(5).startswith(start[:5]), name


def curve_of(axes, count):
    """The x of the line with so many points."""
    return next(line.get_xdata() for line in axes.lines if len(line.get_xdata()) == count)


@pytest.mark.long
def test_x_axes():
    run = make_run("axes", steps=40, every=20, tokens_per_step=1000)
    for axis, expected, label in (("steps", [0, 20, 40], "steps"), ("tokens", [0, 20000, 40000], "tokens (thousands)"),
                                  ("hours", [0, 50 / 3600, 100 / 3600], "minutes of training")):
        figure, panels = figure_of(run, "--x", axis, "--panels", "loss,hellaswag,lr")
        for panel in ("loss", "hellaswag"):
            got = curve_of(panels[panel], 3)
            assert all(abs(a - b) < 1e-9 for a, b in zip(got, expected)), (axis, panel, got)
        assert len(curve_of(panels["lr"], 40)) == 40
        assert label in [text.get_text() for text in figure.texts], axis
    _, panels = figure_of(make_run("foreign", steps=40, every=20, info=False), "-x", "tokens",
                          "--tokens-per-step", "512", *LOSS)
    assert list(curve_of(panels["loss"], 3)) == [0, 20 * 512, 40 * 512]


def test_different_tokens_per_step():
    one, two = make_run("one", tokens_per_step=1000), make_run("two", tokens_per_step=4000, steps=100)
    _, err = draws(one, two, "-o", path("two.png"), *SMALL, *LOSS)
    assert "differ in tokens per step" in err and "--x tokens" in err, err
    assert draws(one, two, "-o", path("two.png"), "--x", "tokens", *SMALL, *LOSS)[1] == ""
    _, panels = figure_of(one, two, "-x", "tokens", *LOSS)
    assert panels["loss"].get_xlim()[1] > 400000 > 0.95 * panels["loss"].get_xlim()[1]


def test_steep_start_does_not_flatten_the_rest():
    _, panels = figure_of(make_run("steep", steps=2000, every=100), "--reference", "none", *LOSS)
    low, high = panels["loss"].get_ylim()
    assert 2.5 < low < 3.0 and 3.1 < high < 5.0, (low, high)
    _, panels = figure_of(path("steep"), "--log-x", *LOSS)
    assert panels["loss"].get_ylim()[1] > 10 and panels["loss"].get_xscale() == "log"
    _, panels = figure_of(path("steep"), "--from", "1000", *LOSS)
    assert panels["loss"].get_xlim()[0] > 900 and panels["loss"].get_ylim()[1] < 3.3


def test_diverged_run_is_shown():
    """What goes up and stays there is no spike that may be cut off."""
    folder = make_run("diverged", steps=1000, every=100)
    write("diverged/main.log", "".join(train_line(step, falling(step) if step < 800 else 7.5) for step in range(1000)))
    _, panels = figure_of(folder, *LOSS)
    assert panels["loss"].get_ylim()[1] > 7.5, panels["loss"].get_ylim()


def test_smoothing():
    need_matplotlib()
    plot.import_matplotlib()
    y = plot.np.array([5.0, 4.0, math.nan, 2.0] + [1.0, 3.0] * 50)
    assert list(plot.smoothed(y, 1)[:2]) == [5.0, 4.0]
    smooth = plot.smoothed(y, 21)
    assert smooth[0] == 5.0 and math.isnan(smooth[2]) and abs(smooth[60] - 2.0) < 0.06, smooth[60]
    assert plot.np.isfinite(smooth[3:]).all()
    x, medians = plot.np.arange(400.0), plot.np.full(400, 10.0)
    medians[200] = 0.001  # a step in which a checkpoint was written
    assert (plot.block_medians(x, medians, 20) == 10.0).all()
    shown = texts(make_run("smooth", steps=400), "--smooth", "50", *LOSS)
    assert "train, mean of 50 steps" in shown, shown
    assert "train" in texts(path("smooth"), "--smooth", "0", *LOSS)


def test_thinning_keeps_extremes():
    need_matplotlib()
    plot.import_matplotlib()
    x, y = plot.np.arange(1.0, 100001.0), plot.np.zeros(100000)
    y[54321], y[70000], y[80000:90000] = 50.0, -50.0, math.nan
    for log_x in (False, True):
        thin_x, thin_y = plot.thinned(x, y, log_x)
        assert len(thin_x) == len(thin_y) <= 2 * plot.COLUMNS + 2
        assert plot.np.nanmax(thin_y) == 50.0 and plot.np.nanmin(thin_y) == -50.0
        assert (plot.np.diff(thin_x) >= 0).all() and plot.np.isnan(thin_y).any()
        assert abs(thin_x[plot.np.nanargmax(thin_y)] - 54321) < 200


def test_holes_and_odd_values():
    """A hole in the log is no line; NaN and resumes are marked; a step twice and a torn line do no harm."""
    folder = make_run("odd", steps=300, starts=[{"from_step": 0}, {"from_step": 150}, {"from_step": "x"}, 5])
    lines = [train_line(step, falling(step)) for step in range(300) if not 200 <= step < 260]
    lines[100] = "s:100 trl:nan lr:0.000600 norm:inf\n"
    write("odd/main.log", "".join(lines) + train_line(299, 3.0) + "s:300 trl:2.")
    _, panels = figure_of(folder, *LOSS)
    line = curve_of(panels["loss"], 241)  # 240 steps and what breaks the line
    assert line is not None
    assert plot.np.isnan(line).sum() == 0 and plot.np.isnan(panels["loss"].lines[0].get_ydata()).sum() == 2
    _, panels = figure_of(folder, "-x", "hours", *LOSS)
    assert plot.np.isnan(panels["loss"].lines[0].get_ydata()).sum() == 2
    shown = texts(folder)
    assert "not a number" in shown and "resumed" in shown, shown
    calm = texts(make_run("calm"), *LOSS)
    assert "not a number" not in calm and "resumed" not in calm


def test_panels():
    run = make_run("panels")
    assert list(figure_of(run)[1]) == ["loss", "hellaswag", "lr", "norm", "speed"]
    assert list(figure_of(run, "--panels", "norm,loss")[1]) == ["loss", "norm"]
    assert list(figure_of(make_run("bare", speed=False, hellaswag=False))[1]) == ["loss", "lr", "norm"]
    write("panels/main.log", "s:0 mmlu:0.2612\ns:10 mmlu:0.2700\n", add=True)
    assert "mmlu" in figure_of(run)[1]
    _, err = draws(path("bare"), "--panels", "loss,mmlu", "-o", path("bare.png"), *SMALL)
    assert err == "plot.py: no run has anything for the panel mmlu; it is left out\n", err
    assert list(figure_of(write("short.log", "s:0 trl:5.0\ns:1 trl:4.0\n"))[1]) == ["loss"]
    write("nothing/main.log", "s:5 tel:4.0000\n")
    assert list(figure_of(path("nothing"))[1]) == ["loss"]  # a single point


@pytest.mark.long
def test_many_runs():
    """Twelve runs of different lengths, with long names and such as could be taken for markup, told apart."""
    runs = [make_run(f"many/{i} $x_1$ & <b> 名 with a name that is longer than it should be {i}", steps=50 + 10 * i)
            for i in range(12)]
    out, err = draws(*runs, "-o", path("many.png"), "--dpi", "50")
    assert "and 9 more" in out and err == "", (out, err)
    need_matplotlib()
    options = plot.parse_options(runs)
    views = plot.read_views(options)
    assert len({(view.color, str(view.dashes)) for view in views}) == 12
    figure, panels = figure_of(*runs)
    figure.canvas.draw()
    legend, top = figure.legends[0].get_window_extent(), panels["loss"].get_tightbbox(figure.canvas.get_renderer())
    assert legend.y0 >= top.y1 - 1 and legend.x1 <= figure.bbox.x1 + 1, (legend, top)
    assert len(figure.legends[0].get_texts()) == 12
    shown = texts(*runs[:2], "--labels", "first,second", *LOSS)
    assert [text for text in shown if text.startswith(("first", "second"))]


def test_runs_that_cover_each_other():
    """Both of two runs with the same losses can be seen: the second is dashed."""
    twins, other = [make_run("twin1"), make_run("twin2", steps=150)], make_run("far", steps=100)
    write("far/main.log", "".join(train_line(step, falling(step) + 0.1) for step in range(100)))
    dashes = [view.dashes for view in plot.read_views(plot.parse_options([*twins, other]))]
    assert dashes == [plot.DASHES[0], plot.OPEN, plot.DASHES[0]], dashes


def test_title_and_facts():
    run = make_run("facts", precision="bf16", hardware={"gpus": [{"name": "NVIDIA H100"}] * 8})
    shown = texts(run)
    facts = ["GPT-2 124M", "FineWeb", "1,000 tokens a step", "8 x NVIDIA H100", "bf16"]
    assert "facts" in shown and "  ·  ".join(facts) in shown, shown
    shown = texts(run, "--title", "A $ title", *LOSS)
    assert "A $ title" in shown and "facts" not in shown, shown


@pytest.mark.long
def test_thousands_of_lines_are_fast():
    need_matplotlib()
    rows = "".join(f"s:{i} trl:3.{i % 9973:04d} lr:0.000600 norm:0.{i % 89:02d}\n" for i in range(100000))
    write("long/main.log", rows)
    write("long/speed.log", "".join(f"s:{i} ms:300.000 tps:170{i % 10}000 sec:{i}.000\n" for i in range(100000)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    out, _ = draws(path("long"), "-o", path("long.png"), "-x", "hours", *SMALL)
    seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    assert "step 100,000" in out and seconds < 10, seconds


def test_real_run():
    """What ./train_gpt2 writes, a resume included, is read and drawn."""
    run = [*cli.TINY, "-i", cli.text_file(), "-v", "10", "-s", "0", "-o", path("real")]
    for more in (["-x", "30"], ["-x", "60", "-y", "--allow-changes"]):
        cli.ran(*run, *more)
    run = run_logs.read_run(path("real"))
    assert run.train.steps == list(range(60)) and run.val.steps[-1] == 60 and run.damaged == 0 and run.notes == []
    assert run.speed.steps == list(range(60)) and run.speed.sec == sorted(run.speed.sec) and run.tokens_per_step == 32
    assert run.hours([60])[0] > run.hours([30])[0] > 0
    shown = texts(path("real"), "-x", "tokens")
    assert "tokens" in " ".join(shown) and "resumed" in shown and "32 tokens a step" in " ".join(shown), shown


# ---- As a user ----


@pytest.mark.parametrize("arguments, says", (
    ("", ["RUN", "--help"]), ("user --panels loss,cats", ["'cats'", "hellaswag"]),
    ("user --reference 117M", ["'117M'", "124M"]), ("user --size 5", ["WIDTHxHEIGHT"]),
    ("user -o a.jpg", ["a.jpg", ".png"]), ("user --labels a,b", ["2 names for 1 runs"]),
    ("user --smooth x --watch user", ["--smooth"])))
def test_refused_options(arguments, says):
    refused(*arguments.split(), says=says)


def test_errors_of_drawing():
    need_matplotlib()
    make_run("user")
    make_run("lone", info=False, speed=False)
    write("blank/main.log", "")
    refused_as_a_user("user", "-o", "nowhere/b.png", says=["nowhere/b.png", "No such file"])
    for arguments, says in (("nowhere", ["nowhere", "no such"]), ("blank", ["holds no line yet", "--watch"]),
                            ("lone -x hours", ["lone", "speed.log", "--x steps"]),
                            ("lone -x tokens", ["lone", "--tokens-per-step"]),
                            ("user --from 999", ["nothing to draw", "999"]),
                            ("user -o nowhere/a.png", ["nowhere/a.png", "No such file"]),
                            ("user --size 2x2", ["2 x 2 inches", "--size"])):
        refused(*arguments.split(), says=says)
    assert not [name for name in os.listdir(WORK) if name.endswith(".tmp")]


def test_without_matplotlib():
    make_run("user")
    write("fake/matplotlib/__init__.py", "raise ImportError('none here')\n")
    refused_as_a_user("user", PYTHONPATH=path("fake"),
                      says=["no matplotlib", "apt-get install python3-matplotlib", "pip install matplotlib"])


def test_help():
    out = subprocess.run([sys.executable, PLOT, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for text in ("29.4 %", "3.42", "discussions", "--watch", "exit status"):
        assert text in out, text
    assert all(len(line) <= 120 for line in out.splitlines())


def test_watch():
    """Waits for the run, draws it again when it has grown, and only then, and ends with a signal."""
    need_matplotlib()
    picture, folder = path("watched.png"), new_folder("watched")
    with open(path("watched.out"), "wb") as out:
        process = subprocess.Popen(
            [sys.executable, PLOT, "--watch", "0.1", folder, "-o", picture, *SMALL, *LOSS], stdout=out,
            stderr=subprocess.PIPE,  # a shell's background job ignores the signal
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    def until(pattern):
        wait_until(lambda: re.search(pattern, tools.read("watched.out")), process, pattern)

    try:
        until(b"waiting: .*watched: there is no such")
        write("watched/main.log", train_line(0, 5.0))
        until(rb"watched at step 1 ")
        first = os.stat(picture)
        assert pixels(picture)[:2] == (250, 200)
        write("watched/main.log", train_line(1, 4.5) + train_line(2, 4.4), add=True)
        until(rb"watched at step 3 ")
        assert os.stat(picture).st_ino != first.st_ino or os.stat(picture).st_mtime_ns > first.st_mtime_ns
        write("watched/main.log", "")  # a fresh run in its folder: the picture stays until there is something to draw
        until(rb"waiting: .*holds no line yet")
        assert pixels(picture)[:2] == (250, 200)
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=tools.LIMIT)
    assert process.returncode == 130 and err == b"", (process.returncode, err)
    lines = tools.read("watched.out").splitlines()
    assert len(lines) == len(set(lines)), lines
    assert not [name for name in os.listdir(WORK) if name.endswith(".tmp")]


@pytest.mark.long
def test_watch_on_a_terminal():
    """One line that is written over, and the run may stand behind --watch."""
    need_matplotlib()
    words = [sys.executable, PLOT, "--watch", make_run("screen"), "-o", path("screen.png"), *SMALL, *LOSS]
    with Terminal(words) as terminal:
        terminal.until(r"\r[^\n]*screen[^\n]*\x1b\[K$")
        terminal.process.send_signal(signal.SIGTERM)
        terminal.finish(128 + signal.SIGTERM)


@pytest.mark.long
def test_output_that_cannot_be_written():
    need_matplotlib()
    words = [sys.executable, PLOT, make_run("spoken"), "-o", path("spoken.png"), *SMALL, *LOSS]
    with open("/dev/full", "w") as full:
        result = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert result.returncode == 1 and re.fullmatch(r"plot\.py: standard output: [^\n]+\n", result.stderr), result
    os.remove(path("spoken.png"))
    assert run_closed(*words) == 0 and os.path.exists(path("spoken.png"))
