"""Reads what a run leaves in its folder: main.log, speed.log and run.jsonl. Standard library only.

    run = read_run("log124M")    a run's folder, a folder of llm.c's (main.log alone), or a log file
    run.loss[7]                  the training loss of update 7, counted from 0

A killed run leaves a last line without its end, which is left out. A resumed run appends, so steps come twice: the
later line counts, and what was logged beyond it is forgotten, because the run went back to that step.
"""
import json
import os
import re

import guard

SERIES = {"trl": "loss", "lr": "lr", "norm": "norm", "tel": "val", "eval": "hellaswag", "mmlu": "mmlu", "tps": "tps"}
VALUE = rf" ({'|'.join(SERIES)}|ms):([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf))"  # as printf writes it
LINE = re.compile(rf"s:(\d{{1,15}})((?:{VALUE})+)")


class LogError(Exception):
    """One line for a person: which file, what is wrong, what was expected, what to do."""


class Run:
    """What is known of a run. Each series maps steps, which rise, to values; a series that was not logged is empty."""

    def __init__(self, path):
        self.path = path                                  # as it was given
        self.loss, self.lr, self.norm, self.tps = {}, {}, {}, {}  # of the update `step`, counted from 0
        self.val, self.hellaswag, self.mmlu = {}, {}, {}  # after `step` updates; accuracies as fractions of 1
        self.start, self.end = {}, {}                     # of run.jsonl the last start, and how it ended
        self.seconds = 0.0                                # of all starts that have ended

    def part(self, name):
        """An object in the last start: options, model. {} if there is none."""
        return self.start[name] if isinstance(self.start.get(name), dict) else {}

    @property
    def tokens_per_step(self):
        return self.start["tokens_per_step"] if isinstance(self.start.get("tokens_per_step"), (int, float)) else None

    @property
    def last_step(self):
        """The updates up to the end of main.log, 0 if it has no line."""
        return max([last(self.loss) + 1, *map(last, (self.val, self.hellaswag, self.mmlu)), 0])


def last(series):
    return next(reversed(series), -1)


def forget_from(step, *several):
    for series in several:
        while last(series) >= step:
            series.popitem()


def whole_lines(path):
    """The lines of a file that have their end."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().split("\n")[:-1]
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}; expected is a run's folder (--out-dir) or a log") from None


def add_line(run, line):
    """Takes a line of main.log, or of speed.log, which counts from 1. Returns whether it is such a line."""
    found = LINE.fullmatch(line)
    for name, text in re.findall(VALUE, found[2]) if found else ():
        step = int(found[1]) - (name == "tps")
        if name == "trl":
            forget_from(step, run.loss, run.lr, run.norm)
            forget_from(step + 1, run.val, run.hellaswag, run.mmlu)
        if name in SERIES:
            series = getattr(run, SERIES[name])
            forget_from(step, series)
            series[step] = float(text)
    return found is not None


def add_event(run, line):
    """Takes a line of run.jsonl. A start without an end was killed, and a later start continues it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    kind = event.get("event") if isinstance(event, dict) else None
    if kind == "start":
        run.start, run.end = event, {}
    elif kind == "end":
        run.end = event
        run.seconds += event["seconds"] if isinstance(event.get("seconds"), (int, float)) else 0.0


def read_run(path):
    """Everything that is known of the run in a folder, or of a log file. Raises LogError."""
    log, run = os.path.join(path, "main.log") if os.path.isdir(path) else path, Run(path)
    lines = whole_lines(log)
    if sum([add_line(run, line) for line in lines]) == 0 and lines:
        raise LogError(f"{log}: has no line of a training log (s:<step> trl:<loss> ...); expected is a main.log")
    for name, add in (("speed.log", add_line), ("run.jsonl", add_event)):
        beside = os.path.join(os.path.dirname(log), name)
        for line in whole_lines(beside) if log.endswith("main.log") and os.path.exists(beside) else ():
            add(run, line)
    return run


def labels(paths):
    """A short name for each path: its last part, and all parts where several paths have this name."""
    paths = [re.sub("/main.log$", "", os.path.abspath(path)) for path in paths]
    names = [os.path.basename(path) for path in set(paths)]
    return [guard.printable(path[1:] if names.count(os.path.basename(path)) > 1 else os.path.basename(path))
            for path in paths]
