"""Which instructions multiply (--cpu-kernels, --precision), in the program of make and in one for any processor of this
kind; and programs on processors that lack what they were built for. The products themselves: test_gemm.c."""
import functools
import platform
import re
import shutil
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
only_x86 = pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="for Linux on x86-64")


def setup_module():
    shard("tokens.bin", random_tokens(16 * 40 + 1, 257))


def compile_program(name, source, *flags):
    """A program for any processor of this kind, unless the flags say more."""
    command = ["gcc" if shutil.which("gcc") else "cc", "-std=gnu11", *flags, "-I.", "-o", path(name), *source, "-lm"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return path(name)


@functools.lru_cache(None)
def trainer(build):
    """The trainer that make has built, or one for any processor, without optimisation: that compiles fast."""
    if build == "native":
        return cli.CPU
    revision = write("revision.c", 'const char *gpt2c_revision(void) { return ""; }')
    return cli.Trainer(compile_program("any", ["train_gpt2.c", revision], "-O0", "-Wno-unknown-pragmas"))


def words(folder, *more):
    return ["-i", path("tokens.bin"), *TINY, "--vocab", 257, *QUIET, "--lr", 1e-3, "--seed", 3, "-o", folder, *more]


@functools.lru_cache(None)
def lacks(build, name, precision):
    """Why this kernel does not run here: the line that refuses it. "": it runs."""
    asked = words(new_folder("asked"), "--cpu-kernels", name, "--precision", precision, "--plan")
    process = trainer(build).start(*asked)
    err = process.communicate(timeout=LIMIT)[1].decode()
    assert process.returncode == (1 if err else 0), (name, err)
    return err


@functools.lru_cache(None)
def trained(build, name, precision, threads=1):
    """The losses and the hash of the weights of a short run, whose outputs name its kernel."""
    folder = new_folder("_".join((build, name, precision)))
    out = trainer(build).ran(*words(folder, "--cpu-kernels", name, "--precision", precision, "-x", STEPS,
                                    "--threads", threads))
    used, options = re.search(rf"^machine .* in {precision} by (\w+),", out, re.M)[1], record_of(folder)["options"]
    assert name in ("auto", used) and options["arithmetic"].startswith(f"{used} and vectors of "), (used, options)
    assert options["precision"] == precision and len(losses(out)) == STEPS
    return losses(out), weights_hash(out), used


def here(build, precision):
    return [name for name in NAMES if not lacks(build, name, precision)]


def fastest(build, precision):
    """The first that runs here; but Intel's AVX512-BF16 is slower than its AVX-512."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            intel = "GenuineIntel" in file.read()
    except FileNotFoundError:
        intel = False
    return [name for name in here(build, precision) if not (intel and name == "avx512bf16")][0]


@pytest.mark.parametrize("build", ("native", pytest.param("any", marks=pytest.mark.long)))
def test_each_kernel(build):
    """Refused in one line, or the same weights on two threads, with the losses of fp32 by the portable kernel."""
    exact = trained(build, "portable", "fp32")[0]
    for precision in ("fp32", "bf16"):
        for name in NAMES:
            if lacks(build, name, precision):
                cli.check_line("train_gpt2", lacks(build, name, precision), [f"--cpu-kernels {name}: ", "auto takes"])
                continue
            values, weights, _ = trained(build, name, precision)
            assert build == "any" or trained(build, name, precision, 2)[1] == weights, (name, precision)
            limit = 1e-5 if precision == "fp32" else 1e-2
            assert all(abs(a - b) <= limit * b for a, b in zip(values, exact)), (name, precision, values, exact)
        assert trained(build, "auto", precision)[2] == fastest(build, precision)
    assert trained(build, "portable", "fp32")[1] != trained(build, "portable", "bf16")[1]


def test_what_cannot_run_says_why():
    for name in PAIRS:
        other = {"amx": "aarch64", "avx512bf16": "aarch64", "bfmmla": "x86_64"}[name] == platform.machine()
        assert ("has none" if other else "") in lacks("native", name, "bf16")
        assert ("has none" if other else "for --precision bf16") in lacks("native", name, "fp32")


def test_resume_with_other_arithmetic():
    """Refused with both names, and possible."""
    first, other = "portable", next((name for name in here("native", "bf16") if name != "portable"), None)
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


@only_x86
def test_a_program_for_another_processor():
    """-D stands for a flag: the check reads the macro. Only AMD's processors of 2011 to 2017 have XOP."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        if re.search(r"\bxop\b", file.read()):
            pytest.skip("this processor has XOP")
    source = write("probe.c", '#include "llmc/base/openmp.h"\nint main(void) { puts("main"); return 0; }\n')
    program = compile_program("probe", [source], "-O2", "-D__XOP__=1")
    done = subprocess.run([program], capture_output=True, text=True)
    says = ("error: this program was built for a processor with xop, which this one lacks; build it here "
            "(`make clean; make`), or for all of them with `make ARCH=`\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", says)
