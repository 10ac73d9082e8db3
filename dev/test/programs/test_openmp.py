"""How OpenMP's threads wait (llmc/base/openmp.h): a small program calls openmp_wait_briefly as every main does, and
prints what it finds."""
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import cli
from tools import LIMIT, ROOT, path, write

PROBE = r"""
#include "llmc/base/openmp.h"
#include <omp.h>
#include <signal.h>
int main(int argc, char **argv) {
    struct sigaction quit;
    openmp_wait_briefly(argv);
    printf("pid %d threads %d\n", (int)getpid(), omp_get_max_threads());
    for (int i = 0; i < argc; i++) { printf("[%s]", argv[i]); }
    sigaction(SIGQUIT, NULL, &quit);
    printf("\nSIGQUIT %s\n", quit.sa_handler == SIG_IGN ? "ignored" : "not ignored");
    fflush(stdout);
    if (argc == 3 && strcmp(argv[1], "raise") == 0) { raise(atoi(argv[2])); }
    return argc == 2 ? atoi(argv[1]) : 0;
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
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT,
                          env={**CLEAN, **variables})
    assert done.returncode == status, f"status {done.returncode}, expected {status}\n{done.stdout}"
    return done.stdout, {name: re.findall(rf"{name} ?= ?'(.*)'", done.stdout) for name in SETTINGS}


def test_gcc_starts_again_once():
    out, found = ran([probe("gcc"), "", "a b", "--x=\n", "*"])
    before, after = found["GOMP_SPINCOUNT"]  # of two starts, no more
    assert (before, after) == ("300000", "2000"), found
    assert f"[{probe('gcc')}][][a b][--x=\n][*]\n" in out


@pytest.mark.parametrize("compiler, name, value, want", (
    ("gcc", "GOMP_SPINCOUNT", "77", "77"), ("gcc", "OMP_WAIT_POLICY", "active", "30000000000"),
    ("clang", "KMP_BLOCKTIME", "7", "7"), ("clang", "KMP_BLOCKTIME", None, "1")))
def test_the_users_settings_win(compiler, name, value, want):
    """clang is told in time, without a second start."""
    found = ran([probe(compiler)], **({name: value} if value else {}))[1]
    (start, ) = found["GOMP_SPINCOUNT" if compiler == "gcc" else "KMP_BLOCKTIME"]
    assert re.fullmatch(f"{want}(ms)?", start), found


def test_status_signals_and_process_stay():
    """The process is the one that was started: its number, its name, its ignored signals, and how it ends."""
    program = probe("gcc")
    ran([program, "37"], status=37)
    ran([program, "raise", str(int(signal.SIGKILL))], status=-signal.SIGKILL)
    process = subprocess.Popen([program, "raise", str(int(signal.SIGSTOP))], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=CLEAN, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGQUIT, signal.SIG_IGN))
    os.waitpid(process.pid, os.WUNTRACED)
    with open(f"/proc/{process.pid}/comm") as comm, open(f"/proc/{process.pid}/environ") as environ:
        name, variables = comm.read().strip(), environ.read()
    process.kill()
    out = process.communicate()[0]
    assert name == os.path.basename(program)[:15] and variables.count("GOMP_SPINCOUNT=") == 1
    assert f"pid {process.pid} threads" in out and "SIGQUIT ignored" in out


def test_what_cannot_start_again_goes_on():
    """A static program and a program given to the loader have one start."""
    program = probe("gcc")
    with open(program, "rb") as file:
        loader = re.search(rb"/lib[\w/]*/ld-[\w.-]+", file.read())[0].decode()
    for command in ([probe("gcc", "-static"), "0"], [loader, program, "0"]):
        out, found = ran(command)
        assert len(found["GOMP_SPINCOUNT"]) == 1 and "[0]\n" in out, out


@pytest.mark.parametrize("program", ("train_gpt2", "tokenize"))
def test_too_many_threads(program):
    """The runtime would keep something for each of them on the stack."""
    done = subprocess.run([os.path.join(os.path.dirname(cli.PROGRAM), program), *TOO_MANY[program]],
                          capture_output=True, text=True, env={**CLEAN, "OMP_NUM_THREADS": "1025"})
    assert done.returncode == 1 and done.stdout == "", done.stdout
    assert "OMP_NUM_THREADS: 1025 threads, expected at most 1024" in done.stderr, done.stderr
