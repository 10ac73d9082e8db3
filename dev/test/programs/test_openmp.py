"""How OpenMP's threads wait (llmc/base/openmp.h): a small program calls openmp_wait_briefly as every main does, and
prints what it finds. Which programs call it is read in their source."""
import glob
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import cli
from tools import LIMIT, ROOT, path, text_of, write

PROBE = r"""
#include "llmc/base/openmp.h"
#include <omp.h>
#include <signal.h>
int main(int argc, char **argv) {
    struct sigaction quit;
    openmp_wait_briefly(argv);
    printf("pid %d rank %s threads %d\n", (int)getpid(), getenv("OMPI_COMM_WORLD_RANK"), omp_get_max_threads());
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


def test_clang_is_told_in_time():
    assert ran([probe("clang")])[1]["KMP_BLOCKTIME"] in (["1"], ["1ms"])


@pytest.mark.parametrize("compiler, name, value, starts", (
    ("gcc", "GOMP_SPINCOUNT", "77", ["77"]), ("gcc", "OMP_WAIT_POLICY", "passive", ["0"]),
    ("gcc", "OMP_WAIT_POLICY", "active", ["30000000000"]), ("clang", "KMP_BLOCKTIME", "7", ["7"]),
    ("clang", "OMP_WAIT_POLICY", "passive", ["0"])))
def test_the_users_settings_win(compiler, name, value, starts):
    found = ran([probe(compiler)], **{name: value})[1]
    assert found["GOMP_SPINCOUNT" if compiler == "gcc" else "KMP_BLOCKTIME"] == starts


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
    assert f"pid {process.pid} rank" in out and "SIGQUIT ignored" in out


def test_started_by_mpirun():
    if shutil.which("mpirun") is None or b"Open MPI" not in subprocess.check_output(["mpirun", "--version"]):
        pytest.skip("no Open MPI")
    out, found = ran(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", probe("gcc"), "0"])
    assert sorted(re.findall(r"rank (\S+)", out)) == ["0", "1"] and len(found["GOMP_SPINCOUNT"]) == 4, out


def test_what_cannot_start_again_goes_on():
    """A static program and a program given to the loader have one start."""
    program = probe("gcc")
    with open(program, "rb") as file:
        loader = re.search(rb"/lib[\w/]*/ld-[\w.-]+", file.read())[0].decode()
    for command in ([probe("gcc", "-static"), "0"], [loader, program, "0"]):
        out, found = ran(command)
        assert len(found["GOMP_SPINCOUNT"]) == 1 and "[0]\n" in out, out


# Programs without OpenMP: their builds do not ask for it, or they have one thread (EMU_THREADS=1, no cuBLASLt).
WITHOUT = ("dev/test/files/numbers_tool.c", "dev/emu/rewrite.cpp", "dev/emu/transpose.cu",
           "dev/figures/pipeline_lists.c")
FOLDERS_WITHOUT = ("dev/exercises/", "dev/cuda/", "dev/test/emu/courses/")  # the layers they call have one thread
CALL = r"\b(openmp_wait_briefly|run_parse|trainer_main|test_main)\("


def body_of(function, text):
    head = rf"^(?:static )?(?:inline )?(?:int|bool) {function}\("
    return re.search(rf"{head}[^\n]*}}$|{head}.*?^}}$", text, re.M | re.S)[0]


def test_every_main_calls_it():
    names = [os.path.relpath(name, ROOT) for folder in ("", "dev/**/") for kind in ("c", "cu", "cpp")
             for name in glob.glob(os.path.join(ROOT, folder, f"*.{kind}"), recursive=True)]
    mains = [name for name in names if re.search(r"^int main\(", text_of(name), re.M)]
    assert len(mains) > 15 and set(WITHOUT) <= set(mains)
    silent = [name for name in mains if name not in WITHOUT and not name.startswith(FOLDERS_WITHOUT)
              and not re.search(CALL, body_of("main", text_of(name)))]
    assert silent == []
    assert "run_parse(" in body_of("trainer_main", text_of("llmc/trainer/cpu_program.h"))
    for name, function in (("llmc/run/train_loop.h", "run_parse"), ("dev/test/test_main.h", "test_main")):
        assert "    openmp_wait_briefly(argv);\n" in body_of(function, text_of(name)), name


@pytest.mark.parametrize("program", ("train_gpt2", "tokenize"))
def test_too_many_threads(program):
    """The runtime would keep something for each of them on the stack."""
    done = subprocess.run([os.path.join(os.path.dirname(cli.PROGRAM), program), *TOO_MANY[program]],
                          capture_output=True, text=True, env={**CLEAN, "OMP_NUM_THREADS": "1025"})
    assert done.returncode == 1 and done.stdout == "", done.stdout
    assert "OMP_NUM_THREADS: 1025 threads, expected at most 1024" in done.stderr, done.stderr
