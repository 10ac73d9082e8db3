#!/usr/bin/env python3
"""Compares training runs: a table of all, and where two part.

    dev/compare.py sweep/*                          a row a run, the lowest validation loss first
    dev/compare.py sweep/* --csv                    the table for other programs
    dev/compare.py ours theirs --tolerance 0.01     numbers that are closer count as alike

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's, which says less), or a main.log. The options
that differ are columns of the table. Of two runs it also says what else they were told differently, and from which step
on their logs part: of the steps that both have logged, as main.log has them, losses to 4 decimals. Standard library
only.

exit status: 0 all is well, of two runs logs and weights are alike; 1 the two differ; 2 an error.
"""
import csv
import math
import sys

import guard
import run_logs

# Series, its title, and how the trainers print the log's step 0.
COLUMNS = (("loss", "training loss", 1), ("norm", "gradient norm", 1), ("lr", "learning rate", 1),
           ("val", "validation loss", 0), ("hellaswag", "HellaSwag", 0), ("mmlu", "MMLU", 0))
NOT_TOLD = ("event", "format", "time", "step", "command", "directory")  # of a start
NO_COLUMN = ("out-dir", "resume", "allow-changes", "overwrite")  # options that say how a run was started


# ---- The table ----


def told_of(run):
    """The options of a run's last start, with the sizes of its model, wherever that came from. {} is not told."""
    options = run.part("options", kind=dict) or {}
    sizes = {name: size for name, size in (run.part("model", kind=dict) or {}).items() if name in options}
    return {**options, **sizes}


def differing_options(runs):
    """The names of the options in which runs differ, in the order of --help all."""
    told = [options for options in map(told_of, runs) if options]
    return [name for name in {name: None for options in told for name in options}
            if name not in NO_COLUMN and len({str(options.get(name)) for options in told}) > 1]


def table_row(run, label, options):
    """The cells of a run, texts and numbers; None where a run does not say."""
    losses = [(loss, step) for step, loss in run.val.items() if math.isfinite(loss)]
    lowest, step = min(losses, default=(None, None))
    final = [series[run_logs.last(series)] if series else None for series in (run.val, run.loss)]
    tokens = run.last_step * run.tokens_per_step if run.tokens_per_step else None
    told = told_of(run)
    return [label, *(told.get(name) for name in options), lowest, step, *final, run.last_step, tokens,
            run.seconds or None, run.end.get("status")]


def cell_text(value):
    text = "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return guard.printable(text)


def print_table(runs, paths, as_csv):
    options = differing_options(runs)
    rows = [table_row(run, label, options) for run, label in zip(runs, run_logs.labels(paths))]
    rows.sort(key=lambda row: math.inf if row[1 + len(options)] is None else row[1 + len(options)])
    head = ["run", *(f"--{name}" for name in options), "lowest val", "at step", "last val", "last loss", "steps",
            "tokens", "seconds", "status"]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *rows])
        return
    texts = [[guard.printable(name) for name in head], *(list(map(cell_text, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts)]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


# ---- Two runs ----


def leaves(value, name):
    """{"model.layers": 12, ...}: every value that is no object."""
    if not isinstance(value, dict):
        return {name: value}
    return {leaf: found for key, part in value.items() for leaf, found in leaves(part, f"{name}.{key}").items()}


def print_told(runs):
    """In what the last starts of the runs differ."""
    a, b = ({name: value for key, part in run.starts[-1].items() if key not in NOT_TOLD
             for name, value in leaves(part, key).items()} if run.starts else {} for run in runs)
    if not a or not b:
        print(f"{'B' if a else 'A'} has no {run_logs.RECORD}: options, model, data and machine are not compared")
        return
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            values = f"{a.get(name, 'not told')} and {b.get(name, 'not told')}"
            print(guard.printable(f"  {name.replace('options.', '--', 1)}: {values}"))


def distance(a, b):
    """NaN is like NaN, and far from all else."""
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) if math.isfinite(a - b) else math.inf


def print_column(runs, series, title, first, tolerance):
    """Returns how many steps both runs have, and the first one at which they part, or None."""
    a, b = (getattr(run, series) for run in runs)
    far = {step: distance(a[step], b[step]) for step in a if step in b}
    differ = [step for step, apart in far.items() if apart > tolerance + 1e-9]  # decimal fractions are not exact
    if far:
        most = max(far, key=far.get)
        where = f"parts at step {first + differ[0]:,}, {len(differ):,} of" if differ else "alike in all"
        furthest = f"; furthest at step {first + most:,}: {a[most]:g} and {b[most]:g}" if far[most] else ""
        print(f"{title:15}  {where} {len(far):,} common steps{furthest}")
    return len(far), first + differ[0] if differ else None


def weights_differ(runs):
    """The hash of all weights is finer than any number in a log."""
    a, b = ((run.end.get("step"), run.end.get("weights_hash")) for run in runs)
    if None in a + b or a[0] != b[0]:
        return False
    print(guard.printable(f"The weights after step {a[0]} " + (f"are the same, hash {a[1]}." if a == b else
                                                               f"differ, hashes {a[1]} and {b[1]}.")))
    return a != b


def compare_two(runs, paths, tolerance):
    """Returns the exit status."""
    for run, name, label in zip(runs, "AB", run_logs.labels(paths)):
        print(f"{name}: {label}, up to step {run.last_step:,}")
    print_told(runs)
    found = {title: print_column(runs, series, title, first, tolerance) for series, title, first in COLUMNS}
    if not any(steps for steps, _ in found.values()):
        raise run_logs.LogError(f"{paths[0]} and {paths[1]} have no step in common; there is nothing to compare")
    parts = [(step, title) for title, (_, step) in found.items() if step is not None]
    other_weights = weights_differ(runs) and tolerance == 0
    print(f"The runs part at step {min(parts)[0]:,} ({min(parts)[1]})." if parts else
          "The logs are alike as far as both go.")
    return 1 if parts or other_weights else 0


def read_runs(paths):
    """(path, run) of each. Of several paths, those that hold no run are left out: pictures and tables of a sweep."""
    found, problem = [], None
    for path in paths:
        try:
            run = run_logs.read_run(path)
            if not (run.last_step or run.starts) and len(paths) > 2:
                raise run_logs.LogError(f"{path}: has no line of a training log")
            found.append((path, run))
        except run_logs.LogError as error:
            problem = error
            if len(paths) > 2:
                print(guard.printable(f"compare.py: left out: {error}"), file=sys.stderr)
    if problem and (len(paths) <= 2 or not found):
        raise problem
    return found


def compare(paths, tolerance, as_csv):
    """Prints all of it. Returns the exit status."""
    only_table = as_csv or len(paths) != 2
    paths, runs = zip(*read_runs(paths))
    for note in (note for run in runs for note in run.notes):
        print(f"compare.py: {guard.printable(note)}", file=sys.stderr)
    print_table(runs, paths, as_csv)
    if only_table:
        return 0
    print()
    return compare_two(runs, paths, tolerance)


def main():
    parser = guard.Parser(__doc__, status=2, prog="compare.py")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="T", help="what counts as alike (0)")
    parser.add_argument("--csv", action="store_true", help="the table only, as comma-separated values")
    options = parser.parse_args()
    if not 0 <= options.tolerance < math.inf:
        parser.error(f"--tolerance {options.tolerance}: expected 0 or more")
    try:
        status = compare(options.runs, options.tolerance, options.csv)
        print(end="", flush=True)
        return status
    except run_logs.LogError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"standard output: {error.strerror}")


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="backslashreplace")  # run.jsonl holds letters of every kind
    sys.exit(main())
