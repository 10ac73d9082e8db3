"""doc/simple/train_gpt2_simple.c is train_gpt2 in one file: weights, batches, losses, samples and files are equal."""
import math
import os
import random
import shutil
import struct
import subprocess

import pytest

import cli
from tools import ROOT, path, read, write

SOURCE = os.path.join(ROOT, "doc", "simple", "train_gpt2_simple.c")
NAME = "train_gpt2_simple"
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# No size is a multiple of anything. The rate is ten times the default, rises and falls.
MODEL = ["--layers", "3", "--heads", "3", "--channels", "39"]
RUN = ["--seq-len", "29", "--batch-size", "5", "--steps", "50", "--lr", "3e-3", "--warmup", "7",
       "--weight-decay", "0.1", "--val-every", "20", "--sample-every", "25", "--seed", "7"]
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def build(name, *flags):
    """The program of the command that its first lines name, or with other flags."""
    if not os.path.exists(path(name)):
        subprocess.run(["gcc", *(flags or ("-O3", "-fopenmp")), *WARNINGS, SOURCE, "-lm", "-o", path(name)], check=True)
    return path(name)


def simple(*arguments, status=0, program="simple", threads=1):
    """The two outputs of a run, in characters of a byte."""
    process = subprocess.Popen([program if "/" in program else build(program), *map(str, arguments)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**cli.ENVIRONMENT, "OMP_NUM_THREADS": str(threads)})
    return cli.finish(process, status, arguments)


def book():
    """Words of all kinds of bytes. Most are of letters, and some come often."""
    if not os.path.exists(path("book.txt")):
        draw = random.Random(3)
        words = [bytes(draw.choices(range(97, 123), k=draw.randint(1, 7))) for _ in range(60)]
        text = b" ".join(words[int(60 * draw.random() ** 3)] for _ in range(4000))
        write("book.txt", bytes(range(1, 256)) + text)
    return ["--train-data", path("book.txt")]


def trained():
    """What the two print, run alike. Each leaves its model."""
    if not os.path.exists(path("trained")):
        write("trained", cli.ran(*book(), *MODEL, *RUN, "--out-dir", path("run")).encode("latin-1"))
        write("simple.log", simple(*book(), *MODEL, *RUN, "--save", path("simple.bin"))[0].encode("latin-1"))
    return [read(path(name)).decode("latin-1") for name in ("trained", "simple.log")]


val_losses = cli.numbers(r"^step +\d+(?:/\d+)? \| val loss ([\d.]+)")


def near(read_numbers, outputs, count):
    """Whether two runs print equal numbers, and so many of them."""
    wanted, found = map(read_numbers, outputs)
    assert len(wanted) == len(found) == count, (wanted, found)
    distance = max(abs(a - b) for a, b in zip(wanted, found))
    assert distance <= 1e-4, (distance, wanted, found)


def test_follows_the_trainer():
    """The losses of 50 steps and of validations. They show the initial weights, the batches, each gradient, the
    clipping and the update."""
    outputs = trained()
    losses = cli.losses(outputs[0])
    assert losses[0] - losses[-1] > 1.0, losses  # it learns
    near(cli.losses, outputs, 50)
    near(val_losses, outputs, 4)


def test_models_travel():
    """Each loads the other's model, goes on from it as the other does, and writes what the other writes, beyond the
    context, too."""
    trained()
    more = ["--seq-len", "29", "--steps", "8", "--lr", "1e-3", "--val-every", "8", "--sample-every", "0", *book()]
    text = ["--steps", "0", "--prompt", "the end is near", "--sample-tokens", "40", "--temperature", "0.5"]
    for model in (path("simple.bin"), path("run", "model_00000050.bin")):
        outputs = cli.ran("--init", model, *more), simple("--init", model, *more)[0]
        near(cli.losses, outputs, 8)
        near(val_losses, outputs, 2)
        ours = simple("--init", model, *text)[0].partition("sample after 0 steps:\n")[2]
        assert cli.sample_of(cli.ran("--init", model, *text)) == ours[:-1], ours
    assert simple("--init", path("simple.bin"), *text[:4], "--temperature", 0)[0].count("e") > 0


def test_sample_steers_no_terminal():
    """A new model writes all tokens, also that of a text's end. What is no text is shown as a question mark."""
    out = simple(*book(), "--layers", "1", "--heads", "1", "--channels", "8", "--seq-len", "8", "--steps", "0",
                 "--sample-tokens", "2000")[0]
    assert out.count("?") > 100 and min(set(out) - {"\n"}) == " "


def test_threads():
    """No number of threads changes a bit, and neither does OpenMP."""
    trained()
    for name, program, threads in (("three.bin", "simple", 3), ("one.bin", build("serial", "-O3"), 1)):
        simple(*book(), *MODEL, *RUN, "--save", path(name), program=program, threads=threads)
        assert read(path(name)) == read(path("simple.bin")), name


def header(**fields):
    """The first bytes of a model's file, with other fields."""
    names = {"magic": 20240326, "version": 3, "maxT": 8, "V": 257, "L": 1, "NH": 1, "C": 8, "Vp": 384, "variant": 0}
    return struct.pack("<9i", *{**names, **fields}.values()).ljust(1024, b"\0")


def test_refused():
    """One line, and no file. With both sanitizers, which see every access of the short runs."""
    program = build("sanitized", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    tiny = ["--layers", "1", "--heads", "2", "--channels", "6", "--seq-len", "5", "--batch-size", "3", "--steps", "2"]
    simple(*book(), *tiny, "--save", path("tiny.bin"), program=program)
    simple("--init", path("tiny.bin"), *book(), "--steps", "1", "--prompt", "beyond", program=program)
    size = len(read(path("tiny.bin"))) - 1024
    models = {"short.bin": header(C=6, maxT=5, NH=2) + bytes(size - 4), "long.bin": read(path("tiny.bin")) + b"\0",
              "nan.bin": read(path("tiny.bin"))[:-4] + struct.pack("<f", math.nan), "bf16.bin": header(version=5),
              "gpt2.bin": header(V=50257, Vp=50304), "variant.bin": header(variant=1), "deep.bin": header(L=1 << 30),
              "wide.bin": header(C=1 << 30), "uneven.bin": header(NH=3), "endless.bin": header(maxT=-1),
              "empty.bin": b""}
    for name, data in models.items():
        write(name, data)
    text = ["--steps", "0"]
    for arguments, says in (
            *((["--init", path(name), *text], f"--init {path(name)}: ") for name in models if name[0] not in "ue"),
            (["--init", path("uneven.bin"), *text], "3 heads, 8 channels"),
            (["--init", path("endless.bin"), *text], "the model knows -1"),
            (["--init", path("empty.bin"), *text], "expected a GPT-2 of bytes"),
            (["--init", path("none.bin"), *text], "No such file"),
            (["--init", path("tiny.bin"), *text, "--layers", "1"], "--layers: "),
            (["--init", path("tiny.bin"), *text, "--seq-len", "6"], "--seq-len 6: the model knows 5"),
            (["--help"], "temperature"), (["--steps"], "--steps: "), (["--step", "3"], "--step: is unknown"),
            (["-steps", "3"], "-steps: is unknown"), (["--steps", "3", "--steps", "4"], "given twice"),
            (["--steps", "2.5"], "--steps 2.5: expected a whole number"), (["--lr", "x"], "--lr x: expected a number"),
            (["--lr", "nan"], "--lr nan: "), (["--seed", "-1"], "--seed -1: "), ([], "--train-data: missing"),
            (["--train-data", path("none.txt")], "No such file"),
            (["--train-data", path()], f"--train-data {path()}: "),
            (["--train-data", write("four.txt", "four"), *tiny], "at least 5 bytes"),
            ([*book(), *tiny, "--heads", "4"], "given twice"), ([*book(), "--heads", "5"], "5 heads, 384 channels"),
            ([*book(), *tiny, "--save", path("no", "m.bin")], f"--save {path('no', 'm.bin')}: ")):
        out, err = simple(*arguments, status=1, program=program)
        cli.check_line(NAME, err, [says])
    assert not [name for name in os.listdir(path()) if name.endswith(".tmp")]


@pytest.mark.parametrize("flags", [(), ("-fopenmp", )], ids=("serial", "openmp"))
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(compiler, flags):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    result = subprocess.run([compiler, "-fsyntax-only", *WARNINGS, *flags, SOURCE], capture_output=True, text=True)
    assert result.returncode == 0 or "omp.h" in result.stderr, result.stderr
