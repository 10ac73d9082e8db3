"""dev/compare.py: each kind of difference between two runs, what is printed of it, and the exit status."""
import json
import math
import os
import re
import shutil
import subprocess
import sys

import cli
from tools import ROOT, WORK, logged_run, path, train_line, write

sys.dont_write_bytecode = True
COMPARE = os.path.join(ROOT, "dev", "compare.py")
sys.path.insert(0, os.path.join(ROOT, "dev"))

import compare  # noqa: E402

INFO = {"format": 1, "program": "train_gpt2cu", "version": "0.1.0", "git": {"revision": "a" * 40, "dirty": False},
        "command": ["./train_gpt2cu", "-o", "x"], "precision": "bf16",
        "options": {"train-data": "fineweb_train_*.bin", "lr": 0.0006, "threads": 0, "val-batches": 20,
                    "shuffle": False},
        "model": {"layers": 12, "channels": 768}, "tokens_per_step": 524288, "steps": 100,
        "data": {"train": {"files": 1, "fingerprint": "00ff"}, "val": {"files": 1, "fingerprint": "aa"}},
        "hardware": {"cpu": "one", "gpus": [{"name": "H100", "memory_bytes": 80 << 30}] * 8},
        "versions": {"compiler": "gcc 12.2.0"}, "starts": [{"from_step": 0}],
        "end": {"step": 100, "status": "done", "weights_hash": "1234", "seconds": 10}}


def make(name, steps=100, speed=500, info=True, change=(), **changed):
    """A run's folder. changed: parts of run.json, by path with __ for the levels; info False: none."""
    record = json.loads(json.dumps(INFO))
    for key, value in changed.items():
        *levels, last = key.split("__")
        place = record
        for level in levels:
            place = place[level]
        place[last] = value
    logged_run(name, lambda step: 5.1 - 0.01 * step, steps, 10, speed=speed, record=record if info else None,
               change=change)


def run(*arguments, status=0):
    result = subprocess.run([sys.executable, COMPARE, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=WORK, timeout=120)
    assert result.returncode == status, (arguments, result.returncode, result.stdout, result.stderr)
    return result.stdout, result.stderr


def said(out, text):
    assert text in out, f"{text!r} is not in\n{out}"


def section(out, title):
    """What is printed under a heading."""
    return re.search(rf"^{re.escape(title)}[^\n]*\n(.*?)(?:\n\n|\Z)", out, re.M | re.S).group(1)


def test_alike():
    make("a"), make("b")
    out, err = run("a", "b")
    assert err == ""
    said(out, "training loss    alike in all 100 common steps")
    said(out, "validation loss  alike in all 11 common steps")
    said(out, "HellaSwag        alike in all 11 common steps")
    said(out, "The runs are alike as far as both go.")
    said(out, "Weights after step 100: the same, hash 1234")
    assert out.count("no differences") == 3, out
    assert "to 4 decimals" in out


def test_losses():
    make("a"), make("b", change={("trl", 37): train_line(37, 4.7301)})
    out, _ = run("a", "b", status=1)
    said(out, "training loss    parts at step 38: 4.7300 and 4.7301; 1 of 100 common steps differ")
    said(out, "largest difference 0.0001 at step 38: 4.7300 and 4.7301")
    said(out, "gradient norm    alike in all 100 common steps")
    said(out, "The runs part at step 38 (training loss).")


def test_each_column():
    for kind, step, line, title in (("trl", 5, train_line(5, 5.05, norm=0.51), "gradient norm"),
                                    ("trl", 5, train_line(5, 5.05, lr=0.000601), "learning rate"),
                                    ("tel", 20, "s:20 tel:5.0001\n", "validation loss"),
                                    ("eval", 20, "s:20 eval:0.2541\n", "HellaSwag")):
        make("a"), make("b", change={(kind, step): line})
        out, _ = run("a", "b", status=1)
        printed = step + (kind == "trl")  # as the trainers print it
        said(out, f"The runs part at step {printed} ({title}).")
        assert len(re.findall("parts at step", out)) == 1, out


def test_tolerance():
    make("a"), make("b", change={("trl", 37): train_line(37, 4.731, 0.000601, 0.51)})
    said(run("a", "b", "--tolerance", "0.001")[0], "alike within 0.001 as far as both go")
    said(run("a", "b", "--tolerance", "0.001")[0], "largest difference 0.0010 at step 38: 4.7300 and 4.7310")
    run("a", "b", "--tolerance", "0.0009", status=1)
    make("b", change={("tel", 20): "s:20 tel:5.1000\n"})
    run("a", "b", "--tolerance", "0.05", status=1)
    run("a", "b", "--tolerance", "0.1")
    make("b", change={("trl", 3): train_line(3, 5.07, norm=0.6)})
    run("a", "b", "--tolerance", "0.05", status=1)


def test_not_a_number():
    nan, inf = ({("trl", 9): train_line(9, value, norm=value)} for value in (math.nan, math.inf))
    make("a", change=nan), make("b", change=nan), make("c"), make("d", change=inf)
    run("a", "b")
    for other in ("c", "d"):
        out, _ = run("a", other, "--tolerance", "1000", status=1)
        said(out, "The runs part at step 10 (training loss).")
    out, _ = run("c", "d", status=1)
    said(out, "largest difference inf at step 10: 5.0100 and inf")
    assert not compare.alike(math.nan, 1.0, math.inf) and compare.alike(math.inf, math.inf, 0.0)


def test_options():
    """Each difference in its group: what shapes, what is measured, and the rest."""
    make("a")
    make("b", options__lr=0.0012, options__shuffle=True, options__threads=8, model__layers=24, version="0.2.0",
         options__new="x", versions__compiler="gcc 14", data__train__fingerprint="11ee", precision="fp32",
         data__val__fingerprint="bb", git__revision="b" * 40, options__seed=1)
    make("b/../c", **{"options__val-batches": 5})
    out, _ = run("a", "b")
    shapes, rest = section(out, compare.SHAPES), section(out, compare.FREE)
    for row in (r"--lr +0\.0006 +0\.0012", r"--shuffle +no +yes", r"model\.layers +12 +24", r"precision +bf16 +fp32",
                r"data\.train\.fingerprint +00ff +11ee", r"only B has: --new x, --seed 1$"):
        assert re.search(row, shapes, re.M), (row, out)
    for row in (r"--threads +0 +8", r"version +0\.1\.0 +0\.2\.0", r"versions\.compiler +gcc 12\.2\.0 +gcc 14"):
        assert re.search(row, rest), (row, out)
    said(rest, f"    A  {'a' * 40}\n    B  {'b' * 40}")
    assert re.search(r"data\.val\.fingerprint +aa +bb", section(out, compare.MEASURES)), out
    assert "only A has: --new x, --seed 1\n" in run("b", "a")[0]
    assert re.search(r"--val-batches +20 +5", section(run("a", "c")[0], compare.MEASURES))
    make("d", **{"options__val-batches": -1, "options__val-sequences": 80})
    out = section(run("a", "d")[0], compare.MEASURES)  # of a version that counted batches, and of a later one
    assert re.search(r"--val-batches +20 +-1", out) and "only B has: --val-sequences 80" in out, out


def test_hardware():
    make("a", hardware__memory_bytes=64 << 30)
    make("b", hardware__gpus=[{"name": "A100", "memory_bytes": 85899345920}] * 4, hardware__memory_bytes=67553994752)
    out, _ = run("a", "b")
    assert re.search(r"hardware\.gpus +8 x H100, 80\.00 GiB +4 x A100, 80\.00 GiB", section(out, compare.FREE)), out
    assert re.search(r"hardware\.memory_bytes +64\.00 GiB +62\.91 GiB", section(out, compare.FREE)), out
    said(out.splitlines()[0], "8 x H100")


def test_option_table():
    """The groups come from the trainers' own table, all of it."""
    with open(os.path.join(ROOT, "llmc", "run", "train_options.h")) as file:
        rows = re.findall(r"^    X\(", file.read(), re.M)
    groups = compare.option_groups()
    assert len(groups) == len(rows) > 50, (len(groups), len(rows))
    assert groups["lr"] == groups["seed"] == groups["total-batch"] == compare.SHAPES
    assert groups["val-every"] == groups["val-data"] == compare.MEASURES
    assert groups["threads"] == groups["batch-size"] == groups["out-dir"] == compare.FREE


def test_weights():
    make("a"), make("b", end__weights_hash="5678")
    out, _ = run("a", "b", status=1)
    said(out, "different, hashes 1234 and 5678")
    said(out, "part below the digits that are logged")
    run("a", "b", "--tolerance", "0.0001")
    make("b", end__weights_hash="5678", end__step=90)
    assert "Weights" not in run("a", "b")[0]


def test_other_lengths():
    make("a"), make("b", steps=40)
    out, _ = run("a", "b")
    said(out, "alike in all 40 common steps")
    said(out, "A goes on to step 100")
    said(run("b", "a")[0], "B goes on to step 100")
    said(out, "up to step 40")
    write("eight/main.log", "".join(f"s:{step} trl:1.0 lr:1 norm:1\n" for step in range(8)))  # no validation after it
    said(run("eight", "eight")[0], "A: eight: up to step 8\n")


def test_nothing_in_common():
    make("a", steps=5)
    write("a/main.log", "s:3 trl:1.0 lr:1 norm:1\n")
    write("late/main.log", "s:7 trl:1.0 lr:1 norm:1\n")
    write("empty/main.log", "")
    for other, last in (("late", "4 and 8"), ("empty", "none")):
        out, err = run("a", other, status=2)
        assert out == "" and re.fullmatch(r"compare\.py: [^\n]*no step in common[^\n]*\n", err) and last in err, err


def test_logs_of_other_programs():
    """A main.log and nothing else, in a folder or as a file of another name."""
    make("a")
    make("theirs", info=False, speed=None)
    shutil.copy(path("theirs/main.log"), path("main_theirs.txt"))
    for other in ("theirs", "theirs/main.log", "main_theirs.txt"):
        out, _ = run("a", other)
        said(out, "B has no run.json")
        said(out, "alike in all 100 common steps")


def test_norms_that_one_does_not_log():
    make("a")
    write("short.log", "".join(f"s:{step} trl:{5.1 - 0.01 * step:.4f}\n" for step in range(50)))
    out, _ = run("a", "short.log")
    said(out, "training loss  alike in all 50 common steps")
    assert "gradient norm" not in out, out


def test_speed():
    make("a"), make("b", speed=750), make("c", speed=None, info=False)
    out, _ = run("a", "b")
    assert re.search(r"tokens/s, median +500 +750 +1\.500", out), out
    assert re.search(r"ms in a step, median +2,000\.00 +1,333\.33 +0\.667", out), out
    assert re.search(r"time in all +5 min 00 s +5 min 00 s +1\.000", out), out
    assert re.search(r"tokens/s, median +500 +-\n", run("a", "c")[0])
    said(run("c", "c")[0], "neither has a speed.log")


def test_tables():
    make("a", steps=400), make("b", steps=400, change={("tel", 150): "s:150 tel:9.0000\n"})
    out, _ = run("a", "b", status=1)
    rows = section(out, "Validation loss")
    assert "of 41 rows; --all" in out and len(rows.splitlines()) <= 14, out
    for row in (r" 0 +5\.2000 +5\.2000 +\+0\.0000", r" 150 +3\.7000 +9\.0000 +\+5\.3000", r" 400 +1\.2000"):
        assert re.search(row, rows), (row, rows)
    assert len(section(run("a", "b", "--all", status=1)[0], "Validation loss").splitlines()) == 42


def test_errors():
    make("a")
    for arguments, says in ((["a"], "RUN"), (["a", "nowhere"], "no such"), (["a", "a", "--tolerance", "x"], "'x'"),
                            (["a", "a", "--tolerance", "nan"], "'nan'"), (["a", "a", "--tolerance", "-1"], "")):
        out, err = run(*arguments, status=2)
        assert out == "" and re.fullmatch(r"compare\.py: [^\n]+\n", err) and says in err, (arguments, err)
    write("a/run.json", "{")
    out, err = run("a", "a")
    assert "run.json: is no JSON" in err and "A has no run.json" in out, (out, err)
    assert "exit status: 0" in run("--help")[0]


def test_output():
    """A disk that is full is no difference; a locale without a letter of run.json is no error."""
    make("a"), make("b", options__prompt="\u00e9\u2026"), make("c", options__prompt="")
    command = [sys.executable, COMPARE, path("a"), path("b")]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2 and re.fullmatch(r"compare\.py: standard output: [^\n]+\n", result.stderr), result
    plain = dict(os.environ, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain)
    assert result.returncode == 0 and b"\\xe9\\u2026" in result.stdout and result.stderr == b"", result


def test_real_runs():
    """Two runs of ./train_gpt2: the same, and with another seed."""
    for name, seed in (("same1", 1), ("same2", 1), ("other", 2)):
        cli.ran(*cli.TINY, "-i", cli.text_file(), "-v", 10, "-s", 0, "-x", 30, "--seed", seed, "-o", path(name))
    out, _ = run("same1", "same2")
    said(out, "Weights after step 30: the same")
    said(out, "alike in all 30 common steps")
    out, _ = run("same1", "other", status=1)
    assert re.search(r"--seed +1 +2", section(out, compare.SHAPES)), out
    said(out, "The runs part at step 0")
