"""What the programs in dev/data share: options, one-line errors, small files, locked folders, a progress line.

Standard library only.
"""
import argparse
import collections
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import guard  # noqa: E402: it lies in the folder that was just added

BLOCK = 1 << 20
RECORD = ".fetched.json"
LOCK = ".lock"


class Problem(Exception):
    """What a user is told in one line: what is wrong, where, what was expected, what to do."""


class Stopped(KeyboardInterrupt):
    """SIGTERM, treated as Ctrl-C."""


# ---- Programs and options ----


def open_closed_streams():
    """A program that was started with its standard output or errors closed speaks to nobody."""
    for name in ("stdin", "stdout", "stderr"):  # in the order of their numbers, which they take
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))


def run(program, main):
    """Runs main() and turns what went wrong into one line and an exit status."""
    open_closed_streams()
    guard.screens("stdout", "stderr")
    try:
        main()
        sys.stdout.flush()
        return
    except Problem as problem:
        message, status = str(problem), 1
    except Stopped as stopped:
        message, status = str(stopped) or "stopped by SIGTERM; the same command goes on", 143
    except KeyboardInterrupt as stopped:
        message, status = str(stopped) or "stopped by Ctrl-C; the same command goes on", 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message, status = "what reads the output has gone", 1
    except OSError as error:
        message, status = os_problem(error), 1
    except UnicodeError as error:
        message, status = f"not valid UTF-8: {error}", 1
    except MemoryError:
        message, status = "out of memory", 1
    print(guard.printable(f"{program}: {message}"), file=sys.stderr, flush=True)
    sys.exit(status)


def os_problem(error):
    hints = {
        errno.ENOSPC: "free some space, or choose another disk with --out; the same command goes on",
        errno.EDQUOT: "the quota is used up: free some space, or choose another disk with --out",
        errno.EACCES: "check its permissions, or choose another folder with --out",
        errno.EPERM: "choose another folder with --out",
        errno.EROFS: "choose another folder with --out",
    }
    place = f"{error.filename}: " if error.filename else ""
    hint = hints.get(error.errno)
    return f"{place}{error.strerror or error}" + (f"; {hint}" if hint else "")


def catch_sigterm():

    def stop(*_):
        raise Stopped()

    signal.signal(signal.SIGTERM, stop)


def whole(low, high):
    """The type of an option: a whole number in a range."""

    def parse(text):
        if re.fullmatch(r"\d{1,18}", text) and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"got '{text}', expected a whole number from {low} to {high}")

    return parse


def existing_file(text):
    if not os.path.isfile(text):
        raise argparse.ArgumentTypeError(f"{text}: no such file")
    return text


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0.001 <= value <= 3600:
        return value
    raise argparse.ArgumentTypeError(f"got '{text}', expected seconds from 0.001 to 3600")


def mirror_address(text):
    parts = urllib.parse.urlsplit(text)
    if parts.scheme in ("http", "https") and parts.hostname:
        return text.rstrip("/")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return text.rstrip("/")
    if not parts.scheme and text:
        address = "file://" + urllib.parse.quote(os.path.abspath(text))
        raise argparse.ArgumentTypeError(f"got '{text}', expected an address; for a folder: {address}")
    raise argparse.ArgumentTypeError(f"got '{text}', expected http://host/..., https://host/... or file:///folder")


def parser(description, out, jobs=False):
    """The options that all programs have. out: the folder they write to, seen from the root. jobs: whether there are
    many files to fetch."""
    p = guard.Parser(description)
    place = f"{out} of the repository" if out != "." else "the root of the repository"
    p.add_argument("--out", metavar="DIR", help=f"write into this folder (default: {place})")
    p.add_argument("--mirror", type=mirror_address, metavar="URL", help="fetch from here instead: URL/<path as on the "
                   "real host>; http, https or file:///folder (see dev/data/README.md)")
    if jobs:
        p.add_argument("--jobs", type=whole(1, 64), default=4, metavar="N", help="files to fetch at once (default 4)")
    p.add_argument("--verify", action="store_true", help="read what is already there again and check its checksum")
    p.add_argument("--retries", type=whole(0, 1000), default=6, metavar="N",
                   help="attempts without any progress before giving up on a file (default 6)")
    p.add_argument("--retry-wait", type=seconds, default=1.0, metavar="SECONDS",
                   help="pause before the first new attempt; it doubles each time, up to a minute (default 1)")
    p.add_argument("--timeout", type=seconds, default=60.0, metavar="SECONDS",
                   help="a connection silent for so long is broken (default 60)")
    p.set_defaults(default_out=os.path.join(ROOT, *out.split("/")), **({} if jobs else {"jobs": 1}))
    return p


def parse(p, arguments=None):
    options = p.parse_args(arguments)
    if options.out == "":
        p.error("argument --out: is empty, expected a folder")
    options.out = os.path.abspath(options.out) if options.out else options.default_out
    catch_sigterm()
    return options


def show_path(path):
    """A path as short as possible, for people: relative to where the user is."""
    relative = os.path.relpath(path)
    return guard.printable(path if relative.startswith(os.path.join("..", "..")) else relative)


def show_bytes(count):
    value, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 100 else f"{value:.1f} {units[0]}"


def show_seconds(value):
    value = int(value + 0.5)
    if value >= 3600:
        return f"{value // 3600}h {value % 3600 // 60:02d}m"
    return f"{value // 60}m {value % 60:02d}s" if value >= 60 else f"{value}s"


def note(text):
    """A remark that is no error."""
    print(text, file=sys.stderr, flush=True)


# ---- Small files ----


def write_atomically(path, data):
    """Writes bytes so that the name holds the whole of them or what it held before."""
    with guard.new_file(path) as file:
        file.write(data)


def write_json(path, value):
    write_atomically(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


def read_json(path):
    """The object in a file, {} where there is none or it is damaged: then what it recorded is found out again."""
    try:
        value = json.loads(guard.read_file(path))
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def sync_folder(path):
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems cannot
    finally:
        os.close(descriptor)


def remove(path):
    try:
        os.remove(path)
    except FileNotFoundError:
        pass


def file_sha256(path, progress=None):
    digest = hashlib.sha256()
    with guard.open_file(path, buffering=0) as file:
        while True:
            block = file.read(BLOCK)
            if not block:
                return digest.hexdigest()
            digest.update(block)
            if progress:
                progress.add(len(block))
                progress.draw()


# ---- The folder that is written to ----


class Folder:
    """A locked folder and the record of the verified files in it: name -> size, time of change, checksum, and `made`
    for a file that was computed here: what it was computed from."""

    def __init__(self, path, wait=False):
        self.path = path
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            raise Problem(f"{path}: is a file, expected a folder; choose another with --out") from None
        except NotADirectoryError:
            raise Problem(f"{path}: a file is in the way; choose another folder with --out") from None
        self.lock = self.take_lock(wait)
        self.mutex = threading.Lock()
        self.record = self.read_record()

    def read_record(self):
        """What the folder's record says, as far as it has the form that remember() and set_source() give it."""
        known = {key: value for key, value in read_json(self.join(RECORD)).items() if isinstance(value, dict)}
        if "files" in known:
            known["files"] = {name: entry for name, entry in known["files"].items() if isinstance(entry, dict)}
        return known

    def take_lock(self, wait):
        descriptor = guard.open_regular(self.join(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                os.fchmod(descriptor, 0o600)  # who may not open it cannot hold it
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise Problem(f"{show_path(self.path)}: another program writes here now; wait until it has ended, or "
                          "choose another folder with --out") from None
        return descriptor

    def close(self):
        os.close(self.lock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def join(self, name):
        return os.path.join(self.path, name)

    def remember(self, name, sha256, made=None):
        """Records a whole file by its checksum."""
        status = os.stat(self.join(name))
        entry = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
        if made is not None:
            entry["made"] = made
        with self.mutex:
            self.record.setdefault("files", {})[name] = entry
            write_json(self.join(RECORD), self.record)

    def forget(self, *names):
        with self.mutex:
            for name in names:
                self.record.get("files", {}).pop(name, None)
            write_json(self.join(RECORD), self.record)

    def set_source(self, source):
        """Says what the folder holds; another kind of content in it is refused, so that two never mix."""
        old = self.record.get("source")
        if old is not None and old != source:
            differing = [key for key in sorted({*old} & {*source}) if old[key] != source[key]]
            words = ", ".join(f"{key} {str(old[key])[:60]}, now {str(source[key])[:60]}" for key in differing)
            raise Problem(f"{show_path(self.path)}: holds files of another kind ({words}); remove the folder, or "
                          "choose another with --out")
        if old is None:
            self.record["source"] = source
            write_json(self.join(RECORD), self.record)

    def entry(self, name):
        """What is recorded of a file that has not changed since; None otherwise."""
        entry = self.record.get("files", {}).get(name)
        try:
            status = os.stat(self.join(name))
        except FileNotFoundError:
            return None
        same = entry and entry.get("size") == status.st_size and entry.get("mtime_ns") == status.st_mtime_ns
        return entry if same else None

    def is_made(self, names, made, verify):
        """Whether these files are there as this program made them from the same input."""
        for name in names:
            entry = self.entry(name)
            if entry is None or entry.get("made") != made:
                return False
            if verify and file_sha256(self.join(name)) != entry.get("sha256"):
                note(f"{name}: has changed since it was made; it is made again")
                return False
        return True


# ---- Progress ----


class Progress:
    """One line that is drawn over and over on a terminal; elsewhere a line now and then. Threads only add()."""

    def __init__(self, what, total, every=30.0):
        self.what, self.total, self.every = what, total, every
        self.done = self.begun = 0
        self.drawn = time.monotonic()
        self.history = collections.deque([(self.drawn, 0)])  # what was new at some moments of the last seconds
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.shown = False
        self.notes = []
        self.mutex = threading.Lock()

    def begin_at(self, done):
        """Bytes that were there before: they count as done, but not for the speed."""
        with self.mutex:
            self.done += done
            self.begun += done

    def add(self, count):
        with self.mutex:
            self.done += count

    def lose(self, count):
        """Bytes that have to be fetched again."""
        with self.mutex:
            self.done -= count
            self.begun = min(self.begun, self.done)

    def note(self, text):
        with self.mutex:
            self.notes.append(text)

    def speed(self, now):
        """Bytes a second, over the last ten seconds or two lines."""
        new = self.done - self.begun
        while len(self.history) > 2 and now - self.history[1][0] > 10.0:
            self.history.popleft()
        begin, before = self.history[0]
        self.history.append((now, new))
        return max(0, new - before) / max(1e-9, now - begin)

    def line(self, now):
        fraction = min(1.0, self.done / self.total) if self.total else 0.0
        speed = self.speed(now)
        left = f", {show_seconds((self.total - self.done) / speed)} left" if speed > 0 and self.total else ""
        of = f" of {show_bytes(self.total)}" if self.total else ""
        bar = f"[{'#' * int(12 * fraction):-<12}] {int(100 * fraction)}%, " if self.terminal and self.total else ""
        return f"{bar}{show_bytes(self.done)}{of}, {1e-6 * speed:.1f} MB/s{left} | {self.what}"

    def draw(self):
        """Called often by the main thread."""
        with self.mutex:
            notes, self.notes = self.notes, []
        for text in notes:
            self.clear()
            note(text)
        now = time.monotonic()
        if now - self.drawn < (0.1 if self.terminal else self.every):
            return
        self.drawn = now
        if self.terminal:
            columns = shutil.get_terminal_size().columns
            sys.stderr.draw(self.line(now)[:max(20, columns - 1)])
            self.shown = True
        else:
            note(self.line(now))

    def clear(self):
        if self.shown:
            sys.stderr.draw("")
            self.shown = False

    def finish(self):
        self.drawn = time.monotonic()
        self.draw()
        self.clear()
