"""Starts the GPU trainer as several ranks, waits for them, and ends them."""
import atexit
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess

import cli
from gpu_program import GPU, PROGRAM
from tools import free_port, wait_until

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
COUNT = itertools.count(1)


def has_mpi():
    if shutil.which("mpirun") is None:
        return "no mpirun"
    if b"Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True).stdout:
        return "this mpirun is not Open MPI's"
    with open(PROGRAM, "rb") as file:
        return None if b"libmpi" in file.read() else "the program was built without MPI"


class Ranks:
    """The processes of one run. how: "fs", "tcp", or "mpi", which is one process, mpirun. address: for TCP, a free port
    of this machine if not given. only: {rank: what it alone has: arguments, environment, folder (where it works),
    program, before (a command that starts it)}."""

    def __init__(self, count, *arguments, how="fs", address=None, only=None, folder=None, program=PROGRAM,
                 **environment):
        self.how, self.evaluates = how, cli.evaluates(arguments)
        self.name = cli.path(f"ranks_{next(COUNT)}")
        self.processes = {}
        atexit.register(self.kill)
        if how == "mpi":
            self.start(0, [*MPIRUN, "-np", str(count), program], arguments, {"environment": environment}, folder)
            return
        if how == "tcp":
            start = ["-pi", "tcp", "-ps", address or f"127.0.0.1:{free_port()}"]
        else:
            start = ["-pi", "fs", "-pf", f"{self.name}.start"]
            os.mkdir(start[-1])
        for rank in range(count):
            own = (only or {}).get(rank, {})
            command = [*own.get("before", []), own.get("program", program)]
            own = dict(own, environment=dict(environment, **own.get("environment", {})))
            self.start(rank, command, [*arguments, *start, "-pn", count, "-pr", rank], own, folder)

    def start(self, rank, command, arguments, own, folder):
        with open(self.file(rank, "out"), "wb") as out, open(self.file(rank, "err"), "wb") as err:
            self.processes[rank] = subprocess.Popen([*command, *map(str, [*arguments, *own.get("arguments", [])])],
                                                    stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                    cwd=own.get("folder", folder), start_new_session=True,
                                                    env=dict(GPU.environment, **own["environment"]))

    def file(self, rank, kind):
        return f"{self.name}.{rank}.{kind}"

    def read(self, rank, kind):
        with open(self.file(rank, kind), encoding="latin-1") as file:
            return file.read()

    def out(self):
        return self.read(0, "out")

    def err(self, rank=0):
        return self.read(rank, "err")

    def outputs(self):
        return "\n".join(f"--- rank {rank}, status {process.poll()}\n{self.read(rank, 'out')}{self.read(rank, 'err')}"
                         for rank, process in self.processes.items())

    def until_printed(self, text):
        """Waits until rank 0 has printed something that matches."""
        wait_until(lambda: re.search(text, self.out(), re.M), self.processes[0], text)

    def until_caught(self, rank, number):
        """Waits until this rank would not be ended by a signal, but takes it."""
        def caught():
            with open(f"/proc/{self.processes[rank].pid}/status") as file:
                mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", file.read(), re.M).group(1)
            return int(mask, 16) >> (number - 1) & 1
        wait_until(caught, self.processes[rank], f"rank {rank} catches signal {number}")

    def wait(self):
        wait_until(lambda: all(process.poll() is not None for process in self.processes.values()), None,
                   "all ranks have ended")

    def kill(self):
        """The end of all, however they are: mpirun is given time to end its own."""
        if self.how == "mpi" and self.processes[0].poll() is None:
            self.processes[0].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[0].wait(10)
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        atexit.unregister(self.kill)

    def finish(self):
        """Waits for a run that must succeed, without a word on stderr; returns what rank 0 prints, as Trainer.ran."""
        self.wait()
        for rank, process in self.processes.items():
            speaks = self.evaluates and rank == 0
            assert process.returncode == 0 and (speaks or self.err(rank) == ""), self.outputs()
        self.kill()
        samples = f"sample:\n{self.out()}" if self.out() else ""
        return self.err() + samples if self.evaluates else self.out()

    def fail(self, says=(), lost=None):
        """Waits for a run that must fail: all ranks with status 1 and one line, in which all of `says` are, but for the
        one that is lost."""
        self.wait()
        for rank, process in self.processes.items():
            assert process.returncode == (-signal.SIGKILL if rank == lost else 1), self.outputs()
            if rank != lost:
                cli.check_line(GPU.name, self.err(rank), says)
        self.kill()


def ran(count, *arguments, **keywords):
    """What rank 0 of a run that must succeed prints."""
    return Ranks(count, *arguments, **keywords).finish()


def refused(count, *arguments, says=(), **keywords):
    Ranks(count, *arguments, **keywords).fail(says)
