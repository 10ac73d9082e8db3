"""doc/simple/train_gpt2_simple.cu is the GPU trainer in one file: its weights, batches, losses and models are those of
the trainers. emucc compiles it, and the emulator checks every access. nvcc, where it is, only compiles it."""
import functools
import os
import subprocess

import pytest

import cli
from cli import CPU, Trainer, losses, make_params, model_bytes, model_header, numbers, read, sample_of, write
from gpu_program import GPU
from test_compilers import NVCC
from tools import LIMIT, ROOT, path

SOURCE = "doc/simple/train_gpt2_simple.cu"
FLAGS = {"fp32": ["-DPRECISION_FP32"], "bf16": [], "cublas": ["-DUSE_CUBLAS"]}  # in fp32 it multiplies by cuBLAS, too
# No size is a multiple of a tile, a sequence has more tokens than a warp has lanes, and a head less channels.
NEW = ["--layers", 2, "--heads", 2, "--channels", 16]
RUN = ["--train-data", cli.text_file(), "--seq-len", 37, "--batch-size", 2, "--lr", "3e-3", "--warmup", 5,
       "--weight-decay", "0.1", "--val-every", 50, "--sample-every", 0]
val_losses = numbers(r"^step +\d+(?:/\d+)? \| val loss ([\d.]+)")
# Of a loss. In fp32, sums in another order are off by a few of 2^-24, and 50 steps of training pass that on. In bf16,
# the trainer rounds weights at random, this one to nearest: half of 2^-8 each.
LIMITS = {"fp32": 1e-5, "bf16": 2.0**-9, "cublas": 2.0**-9}


@functools.lru_cache(None)
def built(build):
    program = path(build, "train_gpt2_simple")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    result = subprocess.run(["dev/emu/emucc", "-O1", "-g1", "-Wall", "-Wextra", *FLAGS[build], SOURCE, "-o", program],
                            cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert (result.returncode, result.stderr) == (0, "")
    return Trainer(program, EMU_THREADS="1")


def check_near(outputs, count, validations, limit):
    """Whether two runs print equal losses, and so many of them."""
    for read_losses, expected in ((losses, count), (val_losses, validations)):
        got, want = map(read_losses, outputs)
        assert len(got) == len(want) == expected, outputs
        assert all(abs(a - b) <= limit * b for a, b in zip(got, want)), (got, want)


@functools.lru_cache(None)
def trained(build, steps):
    """What it prints, and the model that it leaves."""
    saved = path(f"{build}_{steps}.bin")
    return built(build).ran(*RUN, *NEW, "--steps", steps, "--save", saved), saved


@pytest.mark.parametrize("build, trainer, steps", [("fp32", CPU, 50), ("bf16", GPU, 50), ("cublas", GPU, 5)])
def test_follows_the_trainer(build, trainer, steps):
    """They show the initial weights, the batches, each gradient, the clipping and the update."""
    out = trained(build, steps)[0]
    check_near((out, trainer.ran(*RUN, *NEW, "--steps", steps)), steps, 2, LIMITS[build])
    assert steps < 50 or losses(out)[0] - losses(out)[-1] > 2.0, out  # it learns


def test_equal_bits():
    """In another order of blocks, warps and lanes, too, as nothing may depend on it."""
    saved = path("again.bin")
    built("bf16").ran(*RUN, *NEW, "--steps", 3, "--save", saved, EMU_SCHEDULE="random:1")
    assert read(saved) == read(trained("bf16", 3)[1])


def test_models_travel():
    """The trainer reads what it saves. Both go on from it alike, and write equal samples, beyond the context, too."""
    saved = trained("fp32", 50)[1]
    more = ["--init", saved, *RUN, "--steps", 3]
    check_near((built("fp32").ran(*more), CPU.ran(*more)), 3, 2, LIMITS["fp32"])
    text = ["--init", saved, "--steps", 0, "--prompt", "the dog likes a cat", "--sample-tokens", 30, "--temperature"]
    for temperature in (0, 0.5):  # at which they write only letters
        out = built("fp32").ran(*text, temperature)
        assert sample_of(CPU.ran(*text, temperature)) == sample_of(out[out.index("sample after"):])


def test_head_sizes():
    """Heads of 128 channels, all that a warp can hold, and a model made elsewhere, whose scores differ much."""
    c = cli.config(maxT=40, C=128, NH=1)
    model = write("wide.bin", model_bytes(c, make_params(c, deviation=0.2)))
    run = ["--init", model, *RUN[:2], "--seq-len", 40, "--batch-size", 1, "--steps", 2, "--val-every", 0,
           "--sample-every", 0]
    check_near((built("fp32").ran(*run), CPU.ran(*run)), 2, 0, LIMITS["fp32"])


def test_refused():
    """One line, and no file."""
    c, text = cli.config(maxT=8), RUN[:2]
    whole = model_bytes(c, make_params(c))
    files = {"short.bin": whole[:-4], "long.bin": whole + b"\0", "bf16.bin": model_header(c, 5), "empty.bin": b"",
             "gpt2.bin": model_header({**c, "V": 50257, "Vp": 50304}), "deep.bin": model_header({**c, "L": 1 << 30}),
             "odd.bin": model_header({**c, "Vp": 261}), "endless.bin": model_header({**c, "maxT": 0}), "none.bin": None}
    for name, data in files.items():
        says = {"deep.bin": "heads of 8, 16", "odd.bin": "heads of 8, 16", "endless.bin": "knows only 0",
                "none.bin": "No such file"}.get(name, name)
        file = write(name, data) if data is not None else path(name)
        built("bf16").refused("--init", file, *text, "--steps", 1, says=[says])
    write("whole.bin", whole)
    for arguments, says in (
            (["--init", path("whole.bin"), *text, "--seq-len", 9], "--seq-len 9: the model knows only 8"),
            (["--init", path("whole.bin"), *text, "--layers", 1], "--layers: "), (["--steps"], "--steps: "),
            (["--step", 3], "--step: is unknown"), (["--steps", "2.5"], "a whole number"), ([], "--train-data: "),
            (["--lr", "nan"], "--lr nan: "), (["--seed", -1], "--seed -1: "), ([*text, *NEW, "--heads", 4], "twice"),
            (["--train-data", path("none")], "No such file"), (["--train-data", path()], "Is a directory"),
            (["--train-data", write("void", "")], "is empty"), ([*text, "--channels", 36], "36 channels in 12 heads"),
            (["--train-data", write("few", "few"), *NEW, "--seq-len", 4], "shorter than --seq-len"),
            ([*text, *NEW, "--seq-len", 4, "--prompt", "a cat"], "longer than the 4 tokens of --seq-len"),
            ([*RUN, *NEW, "--steps", 0, "--save", path("no", "m.bin")], "No such file")):
        built("bf16").refused(*arguments, says=[says])
    built("bf16").refused(*text, *NEW, "--seq-len", 999, EMU_MEMORY="1", says=["give a smaller --batch-size"])
    built("bf16").refused(*text, *NEW, "--steps", 0, EMU_NO_GPU="1", says=["CUDA: no CUDA-capable device"])
    assert not [name for name in os.listdir(path()) if name.endswith(".tmp")]


@pytest.mark.skipif(NVCC is None, reason="no nvcc here: the file was compiled for the emulator only")
@pytest.mark.parametrize("flags", [
    ["-ptx", "-arch=compute_80"], ["-ptx", "-arch=compute_80", *FLAGS["fp32"]],
    pytest.param(["-O3", "-arch=sm_80"], marks=pytest.mark.long)], ids=["bf16", "fp32", "program"])
def test_nvcc(flags):
    """No warning. The first two make no machine code, which takes longer."""
    result = subprocess.run([NVCC, *flags, "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror", SOURCE,
                             "-o", path("nvcc")], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stdout + result.stderr
