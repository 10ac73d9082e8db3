"""Reads what a run leaves in its folder: main.log, speed.log and run.json. Standard library only.

    run = read_run("log124M")          a run folder, a folder of llm.c's (main.log alone), or a log file
    run.train.steps, run.train.loss    one entry per update, in order, each step once
    run.hours(steps)                   the same steps as hours of training; None where speed.log does not say

main.log and speed.log hold a line per event (llmc/run/log.h). They may hold what a run that was killed leaves behind: a
last line without its end (left out), other damaged lines (counted), NaN and infinite values (kept), and, where a
program appends after a resume without trimming first, steps twice. As in a trimmed log, the later line counts, and
lines of the abandoned future do not.
"""
import bisect
import itertools
import json
import math
import operator
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guard  # noqa: E402

MAIN_LOG, SPEED_LOG, RUN_JSON = "main.log", "speed.log", "run.json"
MAX_BYTES = 1 << 30  # of a log; the trainer reads no longer one either

NUMBER = r"([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf))"  # as printf writes it
MAIN_LINE = re.compile(rf"^s:(\d{{1,15}}) (?:trl:{NUMBER}(?: lr:{NUMBER})?(?: norm:{NUMBER})?"
                       rf"|(tel|eval|mmlu):{NUMBER})$", re.M)
SPEED_LINE = re.compile(rf"^s:(\d{{1,15}}) ms:{NUMBER} tps:{NUMBER} sec:{NUMBER}$", re.M)

# OpenAI's four sizes by their numbers of layers and channels.
GPT2_SIZES = {(12, 768): "124M", (24, 1024): "350M", (36, 1280): "774M", (48, 1600): "1558M"}


class LogError(Exception):
    """One line for a person: which file, what is wrong, what was expected, what to do."""


class Points:
    """Columns of equal length, by step: `steps`, and others by name. Steps rise."""

    def __init__(self, *names):
        self.names = ("steps", *names)
        for name in self.names:
            setattr(self, name, [])

    def __len__(self):
        return len(self.steps)

    def add(self, *values):
        for name, value in zip(self.names, values):
            getattr(self, name).append(value)

    def rewind(self, step):
        """Forgets everything from this step on."""
        kept = bisect.bisect_left(self.steps, step)
        for name in self.names:
            del getattr(self, name)[kept:]

    def by_step(self, name):
        return dict(zip(self.steps, getattr(self, name)))


class Run:
    """What is known of one run. A part whose file or lines are missing is empty."""

    def __init__(self, path):
        self.path = path                           # as it was given
        self.folder = None                         # None: a log file with another name, alone
        self.train = Points("loss", "lr", "norm")  # of the update `step`, counted from 0; None: not logged
        self.val = Points("loss")                  # after `step` updates
        self.hellaswag = Points("accuracy")        # a fraction of 1
        self.mmlu = Points("accuracy")             # a fraction of 1
        self.speed = Points("ms", "tps", "sec")    # of the update `step`; sec: training so far, at its end
        self.info = {}                             # run.json
        self.damaged = 0                           # lines that are none of main.log's
        self.notes = []                            # sentences that a person should see

    def part(self, *names, kind=object):
        """info[names[0]][names[1]]..., or None where it is not there or of another kind."""
        value = self.info
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    @property
    def last_step(self):
        """The updates up to the end of main.log: the trainers print its train step 7 as step 8. -1: it has no line."""
        series = (self.train, self.val, self.hellaswag, self.mmlu)
        return max((points.steps[-1] + (points is self.train) for points in series if len(points)), default=-1)

    @property
    def tokens_per_step(self):
        tokens = self.part("tokens_per_step", kind=(int, float))
        return tokens if tokens is not None and tokens > 0 else None

    @property
    def size(self):
        """Which of OpenAI's GPT-2 has this run's layers and channels: "124M", "350M", "774M" or "1558M"; else None."""
        return GPT2_SIZES.get((self.part("model", "layers", kind=int), self.part("model", "channels", kind=int)))

    @property
    def data(self):
        """ "fineweb-edu" or "fineweb" for runs whose validation tokens come from there, by the file's names."""
        names = self.part("options", "val-data", kind=str) or self.part("options", "train-data", kind=str) or ""
        if "edu_fineweb" in names or "fineweb_edu" in names or "fineweb-edu" in names:
            return "fineweb-edu"
        return "fineweb" if "fineweb" in names else None

    def hours(self, steps):
        """Hours of training after so many updates, one for each of `steps`, which rise; interpolated where speed.log
        has no line, None before its first and after its last."""
        known, seconds = [step + 1 for step in self.speed.steps], self.speed.sec
        if known and known[0] == 1:
            known, seconds = [0, *known], [0.0, *seconds]
        hours, i = [], 0
        for step in steps:
            while i < len(known) and known[i] < step:
                i += 1
            if i < len(known) and known[i] == step:
                hours.append(seconds[i] / 3600)
            elif 0 < i < len(known):
                part = (step - known[i - 1]) / (known[i] - known[i - 1])
                hours.append((seconds[i - 1] + part * (seconds[i] - seconds[i - 1])) / 3600)
            else:
                hours.append(None)
        return hours

    def total_seconds(self):
        """Seconds that the whole run has taken, or None."""
        seconds = self.speed.sec[-1] if len(self.speed) else self.part("end", "seconds", kind=(int, float))
        return seconds if seconds is not None and math.isfinite(seconds) else None


# ---- Lines ----


def read_text(path):
    """The lines of a log that are whole, in one text. A log with another name than ours may be a pipe."""
    opened = guard.open_file if os.path.basename(path) in (MAIN_LOG, SPEED_LOG) else open
    try:
        with opened(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise LogError(f"{path}: is longer than {MAX_BYTES >> 30} GiB, which no log of a run is")
            text = file.read().decode("latin-1")
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from None
    return text[:text.rfind("\n") + 1].replace("\r\n", "\n")


def rises(steps):
    return all(map(operator.lt, steps, itertools.islice(steps, 1, None)))


def fill(points, lines, first):
    """Takes lines, tuples of text with the step in column 0 and the values from column `first` on. False, with nothing
    taken, if a step does not follow on the one before: then the order of all lines matters."""
    columns = list(zip(*lines)) or [()] * (first + len(points.names))
    steps = list(map(int, columns[0]))
    if not rises(steps):
        return False
    points.steps = steps
    for name, column in zip(points.names[1:], columns[first:]):
        setattr(points, name, [float(text) if text else None for text in column])
    return True


def replay(run, series, lines):
    """Takes lines in their order. A step that comes again was taken again, from an older checkpoint: what was logged
    beyond it has not happened."""
    for step, loss, lr, norm, kind, value in lines:
        step, points = int(step), series[kind]
        if points is not run.train:
            points.rewind(step)
            points.add(step, float(value))
            continue
        if len(points) and step <= points.steps[-1]:
            for other in series.values():
                other.rewind(step if other is points else step + 1)
        points.add(step, *(float(text) if text else None for text in (loss, lr, norm)))


def read_main_log(run, path):
    text = read_text(path)
    lines = MAIN_LINE.findall(text)
    run.damaged = text.count("\n") - len(lines)
    if run.damaged and not lines:
        raise LogError(f"{path}: has no line of a training log (s:<step> trl:<loss> ...); expected is a main.log")
    series = {"": run.train, "tel": run.val, "eval": run.hellaswag, "mmlu": run.mmlu}
    by_kind = {kind: [] for kind in series}
    for line in lines:
        by_kind[line[4]].append(line)
    if not all([fill(points, by_kind[kind], 5 if kind else 1) for kind, points in series.items()]):
        for points in series.values():
            points.rewind(0)
        replay(run, series, lines)


def read_speed_log(run, path):
    lines = [line for line in SPEED_LINE.findall(read_text(path)) if line[3][-1].isdigit()]  # sec: finite
    if fill(run.speed, lines, 1):
        return
    for line in lines:
        run.speed.rewind(int(line[0]))
        run.speed.add(int(line[0]), *map(float, line[1:]))


def number(text):
    """A number of run.json, bounded as the trainers bound it: finite, a whole one at most 2^53 either way."""
    whole = text.lstrip("-").isdigit()
    value = (int if whole else float)(text[:400])
    if len(text) > 400 or not (abs(value) <= 1 << 53 if whole else math.isfinite(value)):
        raise ValueError(f"it holds the number {text[:40]}")
    return value


def read_run_json(run, path):
    """A run.json that cannot be read is no reason to show nothing of the run: it is said, and left out."""
    try:
        info = json.loads(guard.read_file(path).decode(), parse_int=number, parse_float=number, parse_constant=number)
        if not isinstance(info, dict):
            raise ValueError("it holds no object")
        run.info = info
    except OSError as error:
        run.notes.append(f"{path}: cannot be read: {error.strerror}; going on without it")
    except (ValueError, RecursionError) as error:
        run.notes.append(f"{path}: is no JSON ({str(error).splitlines()[0]}); going on without it")


# ---- Folders ----


def find_main_log(path):
    """The log that a path names: itself, or main.log in a folder."""
    if os.path.isdir(path):
        log = os.path.join(path, MAIN_LOG)
        if not os.path.exists(log):
            raise LogError(f"{path}: holds no {MAIN_LOG}; expected is a run's folder (--out-dir) or a log")
        return log
    if not os.path.exists(path):
        raise LogError(f"{path}: there is no such folder or file; expected is a run's folder (--out-dir) or a log")
    if os.path.basename(path) in (SPEED_LOG, RUN_JSON):
        raise LogError(f"{path}: give the run's folder, or its {MAIN_LOG}")
    return path


def log_files(path):
    """The files that a run is read from, as far as they are there."""
    log = find_main_log(path)
    folder = os.path.dirname(log)
    others = (SPEED_LOG, RUN_JSON) if os.path.basename(log) == MAIN_LOG else ()
    return [log] + [other for other in (os.path.join(folder, name) for name in others) if os.path.exists(other)]


def read_run(path):
    """Everything that is known of the run in a folder, or of a log file. Raises LogError."""
    run = Run(path)
    files = log_files(path)
    if os.path.basename(files[0]) == MAIN_LOG:
        run.folder = os.path.dirname(files[0]) or "."
    read_main_log(run, files[0])
    for file in files[1:]:
        (read_speed_log if file.endswith(SPEED_LOG) else read_run_json)(run, file)
    if run.damaged:
        lines = "1 line" if run.damaged == 1 else f"{run.damaged:,} lines"
        run.notes.append(f"{files[0]}: {lines} left out that a training log does not hold")
    return run


def fingerprint(paths):
    """Changes whenever a log of these runs does: what is there, its size and its time. A run that is not there yet
    counts as nothing."""
    state = []
    for path in paths:
        try:
            for file in log_files(path):
                status = os.stat(file)
                state.append((file, status.st_ino, status.st_size, status.st_mtime_ns))
        except (LogError, OSError):
            state.append((path, None))
    return state


def labels(paths):
    """A short name for each path: the folder's name, with as many of its parents as it takes to tell it from others."""
    parts = []
    for path in paths:
        path = os.path.abspath(path)
        if os.path.basename(path) == MAIN_LOG:
            path = os.path.dirname(path)
        parts.append([part for part in path.split(os.sep) if part] or [os.sep])
    depth = [1] * len(parts)
    while True:
        names = ["/".join(part[-n:]) for part, n in zip(parts, depth)]
        again = [i for i, name in enumerate(names) if depth[i] < len(parts[i])
                 and any(other == name and parts[j] != parts[i] for j, other in enumerate(names))]
        if not again:
            return names
        for i in again:
            depth[i] += 1
