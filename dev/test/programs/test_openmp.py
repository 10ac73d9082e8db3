"""How OpenMP's threads wait (llmc/base/openmp.h): a small program calls openmp_wait_briefly as every main does, and
prints what it finds."""
import os
import re
import shutil
import subprocess
import sys

import pytest

import cli
from tools import LIMIT, ROOT, path, write

PROBE = r"""
#include "llmc/base/openmp.h"
#include <omp.h>
int main(int argc, char **argv) {
    char name[16] = "";
    openmp_wait_briefly(argv);
    FILE *comm = fopen("/proc/self/comm", "r");
    printf("threads %d pid %d name %s\n", omp_get_max_threads(), (int)getpid(), fgets(name, sizeof(name), comm));
    for (int i = 0; i < argc; i++) { printf("[%s]", argv[i]); }
    fclose(comm);
    return argc > 1 ? atoi(argv[1]) : 0;
}
"""
TOO_MANY = {"train_gpt2": ["-i", "LICENSE", "-x", "0"], "tokenize": ["--tokenizer", "t", "--output", "o", "LICENSE"]}
SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
# OMP_DISPLAY_ENV: a program says its settings each time that its runtime starts.
CLEAN = {name: value for name, value in os.environ.items() if name not in SETTINGS} | {"OMP_DISPLAY_ENV": "verbose"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no Linux")


def probe(compiler, *flags):
    """The small program of a compiler."""
    name = path("_".join(("probe", compiler, *flags)))
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    if not os.path.exists(name):
        write(path("probe.c"), PROBE)
        command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fopenmp", *flags, "-I.",
                   "-include", "unistd.h", path("probe.c"), "-o", name]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if built.returncode != 0 and not os.path.exists(name) and "openmp.h" not in built.stderr:
            pytest.skip(f"{compiler} builds no such program: {built.stderr.splitlines()[0]}")
        assert built.returncode == 0, built.stderr
    return name


def ran(command, status=0, **variables):
    """What a command prints, and the values of the settings at each start of its runtime."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**CLEAN, **variables})
    out = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == status and f"pid {process.pid} " in out, f"status {process.returncode}\n{out}"
    return out, {name: re.findall(rf"{name} ?= ?'(.*)'", out) for name in SETTINGS}


def test_processes_stay():
    """gcc's runtime starts again, once. The process is the one that was started: its number, its name, its arguments,
    and how it ends."""
    program = probe("gcc")
    out, found = ran([program, "37", "", "a b", "--x=\n", "*"], status=37)
    assert found["GOMP_SPINCOUNT"] == ["300000", "2000"], found
    assert f" name {os.path.basename(program)[:14]}\n" in out and f"[{program}][37][][a b][--x=\n][*]" in out, out


@pytest.mark.parametrize("compiler, name, value, want", (
    ("gcc", "GOMP_SPINCOUNT", "77", "77"), ("gcc", "OMP_WAIT_POLICY", "active", "30000000000"),
    ("clang", "KMP_BLOCKTIME", "7", "7"), ("clang", "KMP_BLOCKTIME", None, "1")))
def test_the_users_settings_win(compiler, name, value, want):
    """clang is told in time, without a second start."""
    found = ran([probe(compiler)], **({name: value} if value else {}))[1]
    (start, ) = found["GOMP_SPINCOUNT" if compiler == "gcc" else "KMP_BLOCKTIME"]
    assert re.fullmatch(f"{want}(ms)?", start), found


def test_what_cannot_start_again_goes_on():
    """A static program and a program given to the loader have one start."""
    program = probe("gcc")
    with open(program, "rb") as file:
        loader = re.search(rb"/lib[\w/]*/ld-[\w.-]+", file.read())[0].decode()
    for command in ([probe("gcc", "-static"), "0"], [loader, program, "0"]):
        out, found = ran(command)
        assert len(found["GOMP_SPINCOUNT"]) == 1 and "[0]" in out, out


@pytest.mark.parametrize("program", ("train_gpt2", "tokenize"))
def test_too_many_threads(program):
    """Refused: the runtime would keep something for each of them on the stack. It has been told to wait briefly."""
    done = subprocess.run([os.path.join(os.path.dirname(cli.PROGRAM), program), *TOO_MANY[program]],
                          capture_output=True, text=True, env={**CLEAN, "OMP_NUM_THREADS": "1025"})
    assert done.returncode == 1 and done.stdout == "", done.stdout
    assert "OMP_NUM_THREADS: 1025 threads, expected at most 1024" in done.stderr, done.stderr
    assert re.search("GOMP_SPINCOUNT = '2000'|KMP_BLOCKTIME ?= ?'1", done.stderr), done.stderr
