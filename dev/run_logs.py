"""Reads what a run leaves in its folder: main.log, speed.log and run.jsonl. Standard library only.

    run = read_run("log124M")    a run's folder, a folder of llm.c's (main.log alone), or a log file
    run.loss[7]                  the training loss of update 7, counted from 0

A killed run leaves a last line without its end, which is left out. A resumed run appends, so steps come twice: the
later line counts, and what was logged beyond it is forgotten, because the run went back to that step.
"""
import json
import math
import os
import re

import guard

MAIN_LOG, SPEED_LOG, RECORD = "main.log", "speed.log", "run.jsonl"
MAX_BYTES = 1 << 30  # of a log
MAX_DEPTH = 8        # of objects and lists within each other in run.jsonl

NUMBER = r"([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf))"  # as printf writes it
MAIN_LINE = re.compile(rf"s:(\d{{1,15}}) (?:trl:{NUMBER}(?: lr:{NUMBER})?(?: norm:{NUMBER})?"
                       rf"|tel:{NUMBER}|eval:{NUMBER}|mmlu:{NUMBER})")
SPEED_LINE = re.compile(rf"s:(\d{{1,15}}) ms:{NUMBER} tps:{NUMBER}")

# OpenAI's four sizes by their numbers of layers and channels.
GPT2_SIZES = {(12, 768): "124M", (24, 1024): "350M", (36, 1280): "774M", (48, 1600): "1558M"}


class LogError(Exception):
    """One line for a person: which file, what is wrong, what was expected, what to do."""


class Run:
    """What is known of a run. Each series maps steps, which rise, to values; a series that was not logged is empty."""

    def __init__(self, path):
        self.path = path                                # as it was given
        self.loss, self.lr, self.norm = {}, {}, {}      # of the update `step`, counted from 0
        self.val, self.hellaswag, self.mmlu = {}, {}, {}  # after `step` updates; accuracies as fractions of 1
        self.tps = {}                                   # tokens per second, of the update `step`
        self.starts, self.end = [], {}                  # run.jsonl's events; end: how the last start ended
        self.seconds = 0.0                              # of all starts that have ended
        self.notes = []                                 # sentences that a person should see

    def part(self, *names, kind=str):
        """The last start's [names[0]][names[1]]..., or None where it is not there or of another kind."""
        value = self.starts[-1] if self.starts else None
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    @property
    def last_step(self):
        """The updates up to the end of main.log, 0 if it has no line."""
        return max([last(self.loss) + 1, *map(last, (self.val, self.hellaswag, self.mmlu)), 0])

    @property
    def tokens_per_step(self):
        return self.part("tokens_per_step", kind=(int, float))

    @property
    def size(self):
        """Which of OpenAI's GPT-2 has this run's layers and channels: "124M", "350M", "774M" or "1558M"; else None."""
        return GPT2_SIZES.get((self.part("model", "layers", kind=int), self.part("model", "channels", kind=int)))

    @property
    def data(self):
        """ "fineweb-edu" or "fineweb" for runs that validate on it, by the files' names."""
        names = self.part("options", "val-data") or self.part("options", "train-data") or ""
        if re.search("edu_fineweb|fineweb[-_]edu", names):
            return "fineweb-edu"
        return "fineweb" if "fineweb" in names else None


def last(series):
    return next(reversed(series), -1)


def forget_from(step, *several):
    for series in several:
        while last(series) >= step:
            series.popitem()


# ---- Logs ----


def whole_lines(path):
    """The lines of a file that have their end."""
    try:
        text = guard.read_file(path, MAX_BYTES).decode("latin-1")
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from None
    return text[:text.rfind("\n") + 1].replace("\r\n", "\n").split("\n")[:-1]


def value_of(text):
    """A number of a log. What no loss and no time can be counts as infinite, so that sums and pictures hold it."""
    value = float(text)
    return math.copysign(math.inf, value) if abs(value) > 1e30 else value


def read_main_log(run, path):
    lines = whole_lines(path)
    found = [line for line in map(MAIN_LINE.fullmatch, lines) if line]
    if lines and not found:
        raise LogError(f"{path}: has no line of a training log (s:<step> trl:<loss> ...); expected is a main.log")
    for line in found:
        step, values = int(line[1]), line.groups()[1:]
        if values[0] is not None:
            forget_from(step, run.loss, run.lr, run.norm)
            forget_from(step + 1, run.val, run.hellaswag, run.mmlu)
        for series, text in zip((run.loss, run.lr, run.norm, run.val, run.hellaswag, run.mmlu), values):
            if text is not None:
                forget_from(step, series)
                series[step] = value_of(text)
    if len(found) < len(lines):
        run.notes.append(f"{path}: lines left out that a training log does not hold: {len(lines) - len(found):,}")


def read_speed_log(run, path):
    for line in filter(None, map(SPEED_LINE.fullmatch, whole_lines(path))):
        if math.isfinite(value_of(line[2])):
            update = int(line[1]) - 1  # speed.log counts from 1
            forget_from(update, run.tps)
            run.tps[update] = value_of(line[3])


# ---- run.jsonl ----


def number(text):
    """A number of run.jsonl, bounded as the trainers bound it."""
    value = int(text) if text.lstrip("-").isdigit() else float(text)
    if not abs(value) <= 1 << 53:
        raise ValueError("a number that is too large")
    return value


def depth(value):
    """How deep objects and lists are within each other."""
    levels, values = 0, [value]
    while values:
        levels += 1
        values = [part for value in values if isinstance(value, (dict, list))
                  for part in (value.values() if isinstance(value, dict) else value)]
    return levels


def event_of(line):
    """The object that a line of run.jsonl holds, or None if it is none that a trainer writes."""
    try:
        event = json.loads(line.encode("latin-1"), parse_int=number, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and depth(event) <= MAX_DEPTH else None


def read_record(run, path):
    """run.jsonl: a start without an end was killed, and a later start continues it."""
    lines = whole_lines(path)
    events = [event for event in map(event_of, lines) if event is not None]
    for event in events:
        if event.get("event") == "start":
            run.starts.append(event)
            run.end = {}
        elif event.get("event") == "end":
            run.end = event
            run.seconds += event["seconds"] if isinstance(event.get("seconds"), (int, float)) else 0.0
    if len(events) < len(lines):
        run.notes.append(f"{path}: lines left out that are no event of a run: {len(lines) - len(events):,}")


# ---- Folders ----


def read_run(path):
    """Everything that is known of the run in a folder, or of a log file. Raises LogError."""
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    log = os.path.join(path, MAIN_LOG) if os.path.isdir(path) else path
    if not os.path.exists(log):
        raise LogError(f"{log}: there is no such file; expected is a run's folder (--out-dir) or a log")
    run = Run(path)
    read_main_log(run, log)
    for name, read in ((SPEED_LOG, read_speed_log), (RECORD, read_record)):
        if os.path.basename(log) == MAIN_LOG and os.path.exists(os.path.join(folder, name)):
            read(run, os.path.join(folder, name))
    return run


def labels(paths):
    """A short name for each path: its last part, and all parts where several paths have this name."""
    paths = [re.sub(rf"/{MAIN_LOG}$", "", os.path.abspath(path)) for path in paths]
    names = [os.path.basename(path) for path in set(paths)]
    return [guard.printable(path[1:] if names.count(os.path.basename(path)) > 1 else os.path.basename(path))
            for path in paths]
