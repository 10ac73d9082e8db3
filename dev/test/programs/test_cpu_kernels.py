"""Which instructions multiply (--cpu-kernels, --precision); and programs on processors that lack what they were built
for. The products themselves: test_gemm.c."""
import functools
import platform
import re
import subprocess
import sys

import pytest

import cli
from cli import QUIET, TINY, losses, new_folder, path, random_tokens, shard, stopped_after, weights_hash
from run_folder import record_of
from tools import LIMIT, ROOT, write

NAMES = ("amx", "avx512bf16", "avx512", "avx2", "bfmmla", "portable")
PAIRS = ("amx", "avx512bf16", "bfmmla")  # these multiply bf16 only
STEPS = 4


def setup_module():
    shard("tokens.bin", random_tokens(16 * 40 + 1, 257))


def words(folder, *more):
    return ["-i", path("tokens.bin"), *TINY, "--vocab", 257, *QUIET, "--lr", 1e-3, "--seed", 3, "-o", folder, *more]


@functools.lru_cache(None)
def lacks(name, precision):
    """Why this kernel does not run here: the line that refuses it. "": it runs."""
    asked = words(new_folder("asked"), "--cpu-kernels", name, "--precision", precision, "--plan")
    process = cli.start(*asked)
    err = process.communicate(timeout=LIMIT)[1].decode()
    assert process.returncode == (1 if err else 0), (name, err)
    return err


@functools.lru_cache(None)
def trained(name, precision, threads=1):
    """The losses and the hash of the weights of a short run, whose outputs name its kernel."""
    folder = new_folder(f"{name}_{precision}")
    out = cli.ran(*words(folder, "--cpu-kernels", name, "--precision", precision, "-x", STEPS, "--threads", threads))
    used, options = re.search(rf"^machine .* in {precision} by (\w+),", out, re.M)[1], record_of(folder)["options"]
    assert name in ("auto", used) and options["arithmetic"].startswith(f"{used} and vectors of "), (used, options)
    assert options["precision"] == precision and len(losses(out)) == STEPS
    return losses(out), weights_hash(out), used


def here(precision):
    return [name for name in NAMES if not lacks(name, precision)]


def test_each_kernel():
    """Refused in one line, or the same weights on two threads, with the losses of fp32 by the portable kernel."""
    exact = trained("portable", "fp32")[0]
    for precision in ("fp32", "bf16"):
        for name in NAMES:
            if lacks(name, precision):
                cli.check_line("train_gpt2", lacks(name, precision), [f"--cpu-kernels {name}: ", "auto takes"])
                continue
            values, weights, _ = trained(name, precision)
            assert trained(name, precision, 2)[1] == weights, (name, precision)
            limit = 1e-5 if precision == "fp32" else 1e-2
            assert all(abs(a - b) <= limit * b for a, b in zip(values, exact)), (name, precision, values, exact)
        # The first that runs here; but Intel's AVX512-BF16 is slower than its AVX-512.
        assert trained("auto", precision)[2] in here(precision)[:2 if "avx512bf16" in here(precision)[:1] else 1]
    assert trained("portable", "fp32")[1] != trained("portable", "bf16")[1]


def test_what_cannot_run_says_why():
    for name in PAIRS:
        other = {"amx": "aarch64", "avx512bf16": "aarch64", "bfmmla": "x86_64"}[name] == platform.machine()
        assert ("has none" if other else "") in lacks(name, "bf16")
        assert ("has none" if other else "for --precision bf16") in lacks(name, "fp32")


def test_resume_with_other_arithmetic():
    """Refused with both names, and possible."""
    first, other = "portable", next((name for name in here("bf16") if name != "portable"), None)
    if other is None:
        pytest.skip("one kernel here")
    whole = new_folder("whole")
    run = ["--precision", "bf16", "--checkpoint-every", 2, "-x", STEPS, "--cpu-kernels"]
    cli.ran(*words(whole, *run, first))
    again = words(stopped_after(2, whole), *run)
    cli.refused(*again, other, "--resume", says=[f"arithmetic was {first} and ", f"is {other} and ",
                                                "--allow-changes"])
    cli.ran(*again, other, "--resume", "--allow-changes")


# ---- Processors that lack what a program was built for ----


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="for Linux on x86-64")
def test_a_program_for_another_processor():
    """-D stands for a flag: the check reads the macro. Only AMD's processors of 2011 to 2017 have XOP."""
    source = write("probe.c", '#include "llmc/base/openmp.h"\nint main(void) { puts("main"); return 0; }\n')
    subprocess.run(["cc", "-D__XOP__=1", "-I.", "-o", path("probe"), source], cwd=ROOT, check=True)
    done = subprocess.run([path("probe")], capture_output=True, text=True)
    says = ("error: this program was built for a processor with xop, which this one lacks; build it here "
            "(`make clean; make`), or for all of them with `make ARCH=`\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", says)
