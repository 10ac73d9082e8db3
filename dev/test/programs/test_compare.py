"""dev/compare.py: each kind of difference between two runs, what is printed of it, and the exit status."""
import math
import re

import pytest

import cli
from tools import logged_run, python, read, train_line, write

START = {"event": "start", "options": {"train-data": "x_*.bin", "lr": "0.0006"}, "tokens_per_step": 524288,
         "hardware": {"gpus": {"number": 8, "name": "H100"}}}
END = {"event": "end", "step": 100, "status": "done", "weights_hash": "1234"}


def make(name, steps=100, change=(), end=END, **start):
    """A run's folder. start: parts of its start that are others."""
    logged_run(name, lambda step: 5.1 - 0.01 * step, steps, 10, record=[{**START, **start}, end], change=change)


def run(*arguments, status=0):
    return python("compare.py", *arguments, status=status)


def said(out, *texts):
    """Spaces that only align columns count once."""
    out = re.sub("  +", "  ", out)
    assert all(re.sub("  +", "  ", text) in out for text in texts), f"{texts} are not all in\n{out}"


@pytest.mark.parametrize("kind, step, line, title", (
    ("trl", 37, train_line(37, 4.7301), "training loss"),
    ("trl", 5, train_line(5, 5.05, norm=0.51), "gradient norm"),
    ("trl", 5, train_line(5, 5.05, norm=math.nan), "gradient norm"),
    ("trl", 5, train_line(5, 5.05, 0.000601), "learning rate"),
    ("tel", 20, "s:20 tel:5.0001\n", "validation loss"), ("eval", 20, "s:20 eval:0.2541\n", "HellaSwag")))
def test_each_column(kind, step, line, title):
    make("a"), make("b", change={(kind, step): line}), make("c", change={(kind, step): line})
    out, _ = run("a", "b", status=1)
    said(out, f"The runs part at step {step + (kind == 'trl')} ({title}).")  # as the trainers print it
    assert out.count("parts at step") == 1, out
    run("b", "c")


def test_tolerance():
    make("a"), make("b", change={("trl", 37): train_line(37, 4.731, 0.000601, 0.51)})
    said(run("a", "b", status=1)[0],
         "training loss    parts at step 38, 1 of 100 common steps; furthest at step 38: 4.73 and 4.731\n")
    said(run("a", "b", "--tolerance", "0.01")[0], "alike in all 100 common steps; furthest at step 38: 4.73 and 4.731")
    run("a", "b", "--tolerance", "0.009", status=1)


def test_weights():
    make("a"), make("b", end={**END, "weights_hash": "5678\n\x1b[31m"})
    said(run("a", "b", status=1)[0], "The weights after step 100 differ, hashes 1234 and 5678\\x0a\\x1b[31m.\n")
    run("a", "b", "--tolerance", "0.0001")
    write("b/run.jsonl", read("a/run.jsonl") + read("a/run.jsonl").splitlines(True)[0])  # its last start was killed
    assert "weights" not in run("a", "b")[0]


def test_other_lengths():
    """Also logs of llm.c: a main.log and nothing else, with less in a line."""
    make("a"), write("eight/main.log", "".join(f"s:{step} trl:{5.1 - 0.01 * step:.4f}\n" for step in range(8)))
    out, err = run("a", "eight/main.log")
    said(out, "training loss    alike in all 8 common steps", "\nsteps  100  8\n")
    assert err == "compare.py: eight: has no run.jsonl, so its options are not compared\n" and "norm" not in out, out
    assert re.fullmatch(r"compare\.py: nowhere: No such[^\n]+\n", run("a", "nowhere", status=2)[1])


def test_tables():
    """Of two runs every leaf of the last start that differs. Of more a row a run, sorted by the lowest validation loss,
    with the options that differ."""
    make("a", steps=40), make("b", options={"lr": "0.0012", "seed": "1"}, end={**END, "seconds": 12.5})
    make("late", end={**END, "seconds": 2}, hardware={"gpus": {"number": 4, "name": "A100"}})
    write("late/run.jsonl", read("late/run.jsonl") * 2)
    said(run("a", "late")[0], "\nhardware.gpus.number  8  4\n", "\nhardware.gpus.name  H100  A100\n")
    write("picture.png", "no log\n")
    out, err = run("a", "b", "late", "picture.png")
    rows = [" ".join(re.split("  +", line)) for line in out.splitlines()]
    assert rows == ["run lowest val at step last val last loss steps tokens seconds status --train-data --lr --seed",
                    "b 4.2000 100 4.2000 4.1100 100 52428800 12.5000 done - 0.0012 1",
                    "late 4.2000 100 4.2000 4.1100 100 52428800 4.0000 done x_*.bin 0.0006 -",
                    "a 4.8000 40 4.8000 4.7100 40 20971520 - done x_*.bin 0.0006 -"], out
    assert "compare.py: left out: picture.png: has no line" in err, err
    assert run("late", "b", "--csv")[0].splitlines()[2].startswith("b,4.2,100,"), out


def test_real_runs():
    """Two runs of ./train_gpt2: the same, and with another seed."""
    for name, seed in (("same1", 1), ("same2", 1), ("other", 2)):
        cli.ran(*cli.TINY, "-i", cli.text_file(), "-v", 10, "-s", 0, "-x", 30, "--seed", seed, "-o", cli.path(name))
    out, err = run("same1", "same2")
    said(out, "The weights after step 30 are the same, hash ", "training loss  alike in all 30 common steps\n",
         "validation loss  alike in all 4 common steps\n", "The logs are alike as far as both go.\n")
    assert err == "" and "out-dir" not in out and "command" not in out, out
    said(run("same1", "other", status=1)[0], "\n--seed  1  2\n", "The runs part at step 0 ")
