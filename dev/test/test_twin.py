"""train_gpt2.py against the fixtures it wrote, and ./train_gpt2 against train_gpt2.py over a whole run."""
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import harness

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIXTURES = os.path.join(ROOT, "dev", "test", "fixtures")
FLT_EPSILON = 2.0**-23


def twin(*arguments, needs=("numpy", "torch")):
    for module in needs:
        if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode != 0:
            raise harness.Skip(f"{sys.executable} has no {module}")
    return subprocess.run([sys.executable, os.path.join(ROOT, "train_gpt2.py"), *arguments], capture_output=True,
                          text=True, cwd=ROOT)


def temporary(test):
    """Runs test(folder) with a folder that is removed afterwards."""
    def run():
        folder = tempfile.mkdtemp(prefix="gpt2c_twin_")
        try:
            test(folder)
        finally:
            shutil.rmtree(folder)
    run.__name__ = test.__name__
    return run


def numbers(path):
    """A fixture as 4-byte integers and as floats: most of its bytes are one or the other."""
    with open(path, "rb") as file:
        data = file.read()
    count = len(data) // 4
    return struct.unpack(f"<{count}i", data[:4 * count]), struct.unpack(f"<{count}f", data[:4 * count])


@temporary
def test_fixtures_are_reproducible(folder):
    """Another version of PyTorch may round a last bit differently, no more."""
    result = twin("fixtures", "--output", folder, needs=("numpy", "torch", "transformers"))
    assert result.returncode == 0, result.stderr
    for name in ("tiny.bin", "tiny_bf16.bin", "tiny_debug_state.bin", "tiny_steps.bin", "tiny_after_10.bin",
                 "layers.bin", "init.bin", "hf_tiny/model.safetensors"):
        (got_ints, got), (want_ints, want) = numbers(f"{folder}/{name}"), numbers(f"{FIXTURES}/{name}")
        assert len(got) == len(want), f"{name}: {4 * len(got)} bytes, committed {4 * len(want)}"
        for i, (a, b) in enumerate(zip(got, want)):
            assert got_ints[i] == want_ints[i] or abs(a - b) <= 4 * FLT_EPSILON * max(abs(b), 1e-3), \
                f"{name}: number {i} is {a!r}, committed {b!r}"


STEP = re.compile(r"step +(\d+)/(\d+) \| loss +([0-9.]+) \| norm +([0-9.]+) \| lr +(\S+) \|")
RUN = ["--init", "d6", "--layers", "2", "--heads", "3", "--channels", "48", "--context", "40", "--seq-len", "33",
       "--batch-size", "3", "--total-batch", "198", "--lr", "0.002", "--warmup", "2", "--final-lr-frac", "0.1",
       "--weight-decay", "0.1", "--grad-clip", "1.0", "--steps", "12", "--seed", "7"]


@temporary
def test_same_run_as_the_c_program(folder):
    """Same seed, data and options: the same losses, norms and learning rates, over more than two epochs."""
    program = os.path.join(ROOT, "train_gpt2")
    if not os.path.exists(program):
        raise harness.Skip("./train_gpt2 is not built")
    text = os.path.join(folder, "text.txt")
    with open(text, "wb") as file:
        file.write(b"".join(b"line %d: the square of %d is %d.\n" % (i, i, i * i) for i in range(32)))
    theirs = twin("train", "--train-data", text, *RUN)
    ours = subprocess.run([program, "--train-data", text, *RUN, "--val-every", "0", "--sample-every", "0"],
                          capture_output=True, text=True, cwd=folder)
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    theirs, ours = STEP.findall(theirs.stdout), STEP.findall(ours.stdout)
    assert len(theirs) == len(ours) == 12, f"{len(theirs)} and {len(ours)} step lines, expected 12 each"
    for a, b in zip(ours, theirs):
        assert a[:2] == b[:2] and a[4] == b[4], f"{a} against {b}"
        for x, y, digits in ((a[2], b[2], 1e-6), (a[3], b[3], 1e-4)):  # as printed, after up to 11 updates
            assert abs(float(x) - float(y)) <= digits + 1e-4 * float(y), f"step {a[0]}: {x} against {y}"


def test_bad_arguments():
    for arguments, message in (
            (["train"], "train_gpt2.py: the following arguments are required: --train-data\n"),
            (["train", "--train-data", "none*", "--steps", "1e3"],
             "train_gpt2.py: argument --steps: expected a whole number of at least 0, found '1e3'\n"),
            (["train", "--train-data", "none*", "--lr", "nan"],
             "train_gpt2.py: argument --lr: expected a number from 0 to 10, found 'nan'\n"),
            (["train", "--train-data", "none*"], "train_gpt2.py: --train-data none*: no such file\n"),
            (["train", "--train-data", "none*", "--total-batch", "100"],
             "train_gpt2.py: --total-batch 100: not a multiple of batch size x sequence length = 256\n")):
        result = twin(*arguments)
        assert (result.returncode, result.stderr) == (1, message), f"{arguments}: {result}"


if __name__ == "__main__":
    harness.run("test_twin", [test_fixtures_are_reproducible, test_same_run_as_the_c_program, test_bad_arguments])
