"""For every test of programs: a folder of its own, terminals, small disks, stand-ins for programs of the system."""
import atexit
import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
WORK = os.path.realpath(tempfile.mkdtemp(prefix="programs."))
LIMIT = 300.0  # seconds for whatever must come to an end: many times what it takes, for machines that do much else

atexit.register(shutil.rmtree, WORK, ignore_errors=True)


def path(*names):
    return os.path.join(WORK, *names)


def new_folder(name):
    """The path of a folder that does not exist."""
    shutil.rmtree(path(name), ignore_errors=True)
    return path(name)


def write(name, data, mode=0o644):
    """Writes a file of bytes or text, relative to the test's folder. Returns its path."""
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as file:
        file.write(data if isinstance(data, (bytes, bytearray)) else data.encode())
    os.chmod(path(name), mode)
    return path(name)


def read(name):
    with open(path(name), "rb") as file:
        return file.read()


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def wait_until(condition, process=None, what="what a test waits for"):
    """Waits until condition() holds, as long as the process runs."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process is None or process.poll() is None, f"ended with {process.returncode} before {what}"
        assert time.monotonic() < deadline, f"not within {LIMIT} s: {what}"
        time.sleep(0.005)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def limit_memory(size):
    """For preexec_fn: the process may not have more."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))


@contextlib.contextmanager
def small_disk(size):
    """A folder on a disk of this size, such as 300k."""
    folder = path("disk")
    os.makedirs(folder, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]
    if os.getuid() != 0 or subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        pytest.skip("no right to mount a small disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def python(program, *arguments, status=0, cwd=WORK, **environment):
    """Runs a Python program of dev/ that must end with this status. Returns what it prints and what it complains of."""
    done = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "dev", program), *map(str, arguments)], cwd=cwd,
                          env=dict(os.environ, **environment), capture_output=True, text=True, timeout=LIMIT,
                          check=False)
    assert done.returncode == status, (program, arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


# ---- The logs of a run ----


def train_line(step, loss, lr=6e-4, norm=0.5):
    return f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}\n"


def logged_run(name, loss, steps, every, record=None, change=()):
    """The folder of a run that logs loss(step), and validates every so many steps. A step takes 2 seconds.
    record: the events of run.jsonl. change: {(kind, step): line} instead of those lines."""
    lines, fast = {}, []
    for step in range(steps + 1):
        if step % every == 0:
            lines["tel", step] = f"s:{step} tel:{loss(step) + 0.1:.4f}\n"
            lines["eval", step] = f"s:{step} eval:{0.25 + 0.0002 * step:.4f}\n"
        if step < steps:
            lines["trl", step] = train_line(step, loss(step))
            fast.append(f"s:{step + 1} ms:2000.000 tps:500\n")
    assert set(change) <= set(lines)
    lines.update(change)
    write(os.path.join(new_folder(name), "main.log"), "".join(lines.values()))
    write(f"{name}/speed.log", "".join(fast))
    if record is not None:
        write(f"{name}/run.jsonl", "".join(json.dumps(event) + "\n" for event in record))
    return path(name)


# ---- Programs of the system ----


def stand_ins(programs, hidden=(), only=None):
    """A folder for PATH that holds these programs (name -> script; without a first line: for sh), and links to those
    of PATH: to all but the hidden ones, or only to some."""
    folder = tempfile.mkdtemp(dir=WORK)
    for name, script in programs.items():
        write(os.path.join(folder, name), script if script.startswith("#!") else "#!/bin/sh\n" + script, 0o755)
    if only is None:
        only = [name for place in filter(os.path.isdir, os.environ["PATH"].split(":")) for name in os.listdir(place)]
    for name in set(only) - set(hidden) - set(programs):
        found = shutil.which(name)
        if found:
            os.symlink(os.path.abspath(found), os.path.join(folder, name))
    return folder


def before_path(programs):
    """A PATH on which these programs come first."""
    return stand_ins(programs, only=()) + os.pathsep + os.environ["PATH"]


# ---- Terminals ----


class Terminal:
    """A program on a terminal of its own, which it leads as a shell would; `close` is what happens when ssh dies."""

    def __init__(self, command, ignore=(), env=None, **keywords):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))

        def lead():
            os.setsid()
            fcntl.ioctl(2, termios.TIOCSCTTY, 0)
            for number in (signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN if number in ignore else signal.SIG_DFL)

        self.process = subprocess.Popen(list(map(str, command)), stdin=slave, stdout=slave, stderr=slave,
                                        env=dict(env or os.environ, TERM="xterm"), preexec_fn=lead, **keywords)
        os.close(slave)
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.process.kill()
        self.process.wait()

    def read(self):
        """Takes what the program has written. False: nothing more can come."""
        if not select.select([self.master], [], [], 0.02)[0]:
            return True
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.shown += piece.decode("latin-1")
        return piece != b""

    def until(self, wanted):
        """Reads until a pattern is shown, or until a function says so."""
        holds = wanted if callable(wanted) else lambda: re.search(wanted, self.shown)
        deadline = time.monotonic() + LIMIT
        while not holds():
            assert self.read() and time.monotonic() < deadline, f"ended before {wanted}\n{self.shown[-3000:]}"

    def press(self, keys):
        os.write(self.master, keys)

    def close(self):
        if self.master >= 0:
            os.close(self.master)
        self.master = -1

    def finish(self, status=0):
        """Waits for the end. Returns all that was shown."""
        while self.master >= 0 and self.read():
            pass
        self.close()
        got = self.process.wait(LIMIT)
        assert got == status, f"status {got}, expected {status}\n{self.shown[-3000:]}"
        return self.shown
