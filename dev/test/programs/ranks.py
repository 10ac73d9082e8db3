"""Starts the GPU trainer as several ranks, waits for them, and ends them."""
import atexit
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import cli
from gpu_program import GPU, PROGRAM
from tools import LIMIT, free_port

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
    program, before (a command that starts it), rank and count (what it is told)}; a rank whose value is None is not
    started."""

    def __init__(self, count, *arguments, how="fs", address=None, only=None, folder=None, **environment):
        self.how, self.evaluates = how, cli.evaluates(arguments)
        self.name = cli.path(f"ranks_{next(COUNT)}")
        self.processes, self.ended = {}, {}
        self.began, self.wall = time.monotonic(), time.time()
        atexit.register(self.kill)
        if how == "mpi":
            self.start(0, [*MPIRUN, "-np", str(count), PROGRAM], arguments, {"environment": environment}, folder)
            return
        if how == "tcp":
            start = ["-pi", "tcp", "-ps", address or f"127.0.0.1:{free_port()}"]
        else:
            start = ["-pi", "fs", "-pf", f"{self.name}.start"]
            os.mkdir(start[-1])
        for rank in range(count):
            own = (only or {}).get(rank, {})
            if own is not None:
                program = [*own.get("before", []), own.get("program", PROGRAM)]
                own = dict(own, environment=dict(environment, **own.get("environment", {})))
                place = ["-pn", own.get("count", count), "-pr", own.get("rank", rank)]
                self.start(rank, program, [*arguments, *start, *place], own, folder)

    def start(self, rank, program, arguments, own, folder):
        with open(self.file(rank, "out"), "wb") as out, open(self.file(rank, "err"), "wb") as err:
            self.processes[rank] = subprocess.Popen([*program, *map(str, [*arguments, *own.get("arguments", [])])],
                                                    stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                    cwd=own.get("folder", folder), start_new_session=True,
                                                    env=dict(GPU.environment, **own["environment"]))
        threading.Thread(target=self.note_end, args=(rank, ), daemon=True).start()

    def note_end(self, rank):
        self.processes[rank].wait()
        self.ended[rank] = time.monotonic()

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

    def first_word(self):
        """When a rank wrote first on stderr."""
        written = [os.stat(self.file(rank, "err")) for rank in self.processes]
        return min(file.st_mtime for file in written if file.st_size > 0) - self.wall + self.began

    def all_ended(self):
        return max(self.ended.values())

    def until(self, condition, what):
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, f"not within {LIMIT} s: {what}\n{self.outputs()}"
            time.sleep(0.005)

    def until_printed(self, text):
        """Waits until rank 0 has printed something that matches."""
        def found():
            assert 0 not in self.ended or re.search(text, self.out(), re.M), f"ended before {text}\n{self.outputs()}"
            return re.search(text, self.out(), re.M)
        self.until(found, text)

    def until_caught(self, rank, number):
        """Waits until this rank would not be ended by a signal, but takes it."""
        def caught():
            assert rank not in self.ended, f"ended before it caught signals\n{self.outputs()}"
            with open(f"/proc/{self.processes[rank].pid}/status") as file:
                mask = re.search(r"^SigCgt:\s*([0-9a-f]+)$", file.read(), re.M).group(1)
            return int(mask, 16) >> (number - 1) & 1
        self.until(caught, f"rank {rank} catches signal {number}")

    def wait(self, ranks=None):
        """Waits for these ranks, or all, to end."""
        expected = set(self.processes if ranks is None else ranks)
        self.until(lambda: expected <= set(self.ended), f"the end of ranks {sorted(expected)}")

    def send(self, rank, number):
        os.kill(self.processes[rank].pid, number)
        return time.monotonic()

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

    def fail(self, says=(), lost=(), killed=-signal.SIGKILL):
        """Waits for a run that must fail: all ranks with status 1 and one line, in which all of `says` are; those in
        `lost` with status `killed`, or, where that is None, later. Returns the line."""
        others = [rank for rank in self.processes if rank not in lost]
        self.wait(others if killed is None else None)
        for rank in others:
            assert self.processes[rank].returncode == 1, self.outputs()
            cli.check_line(GPU.name, self.err(rank), says)
        for rank in lost if killed is not None else ():
            assert self.processes[rank].returncode == killed, self.outputs()
        return self.err(others[0]).split(": ", 1)[1].strip()


def ran(count, *arguments, **keywords):
    """What rank 0 of a run that must succeed prints."""
    return Ranks(count, *arguments, **keywords).finish()


def refused(count, *arguments, says=(), **keywords):
    """The message of a run that must fail, how long after its start all ranks have ended, and how long after the first
    of them has said why."""
    ranks = Ranks(count, *arguments, **keywords)
    line = ranks.fail(says)
    ranks.kill()
    return line, ranks.all_ended() - ranks.began, ranks.all_ended() - ranks.first_word()
