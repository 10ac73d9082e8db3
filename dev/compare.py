#!/usr/bin/env python3
"""Compares training runs: a table of all, and where two part.

    dev/compare.py sweep/*                          a row a run, the lowest validation loss first
    dev/compare.py sweep/* --csv                    the table for other programs
    dev/compare.py ours theirs --tolerance 0.01     numbers that are closer count as alike

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's, which says less), or a main.log. The table
has the options that differ. Of two runs it has whatever else they were told differently, too, and then comes from which
step on their logs part: of the steps that both have logged, as main.log has them, losses to 4 decimals. Standard
library only.

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
# What says how a run was started, and not what it computes.
LEFT_OUT = {"event", "format", "time", "step", "command", "directory", "--out-dir", "--resume", "--allow-changes",
            "--overwrite"}


def leaves(value, name=""):
    """{"--lr": "0.1", "model.layers": 12}: what the start of a run says."""
    if not isinstance(value, dict):
        return {name.replace("options.", "--"): value}
    return {leaf: found for key, part in value.items()
            for leaf, found in leaves(part, f"{name}.{key}".strip(".")).items()}


def table(runs, labels):
    """The rows, the head first, the lowest validation loss next. None where a run does not say."""
    told = [leaves(run.start) for run in runs]
    names = [name for name in {name: None for one in told for name in one} if name not in LEFT_OUT
             and (len(runs) == 2 or name.startswith("--")) and len({str(one.get(name)) for one in told if one}) > 1]
    rows = []
    for run, label, values in zip(runs, labels, told):
        losses = [(loss, step) for step, loss in run.val.items() if math.isfinite(loss)]
        tokens = run.last_step * run.tokens_per_step if run.tokens_per_step else None
        rows.append([label, *min(losses, default=(None, None)),
                     *(series.get(run_logs.last(series)) for series in (run.val, run.loss)),
                     run.last_step, tokens, run.seconds or None, run.end.get("status"), *map(values.get, names)])
    if len(runs) != 2:
        rows.sort(key=lambda row: math.inf if row[1] is None else row[1])
    return [["run", "lowest val", "at step", "last val", "last loss", "steps", "tokens", "seconds", "status", *names],
            *rows]


def print_table(rows):
    texts = [["-" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else guard.printable(str(cell))
              for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts)]
    for row in texts:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


# ---- Two runs ----


def distance(a, b):
    """NaN is like NaN, and far from all else."""
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) if math.isfinite(a - b) else math.inf


def print_column(a, b, title, first, tolerance):
    """Returns the steps at which two series part. None: they have no step in common."""
    far = {step: distance(a[step], b[step]) for step in a if step in b}
    if not far:
        return None
    differ = [first + step for step, apart in far.items() if not apart <= tolerance + 1e-9]  # decimals are not exact
    most = max(far, key=far.get)
    where = f"parts at step {differ[0]:,}, {len(differ):,} of" if differ else "alike in all"
    furthest = f"; furthest at step {first + most:,}: {a[most]:g} and {b[most]:g}" if far[most] else ""
    print(f"{title:15}  {where} {len(far):,} common steps{furthest}")
    return differ


def weights_differ(runs):
    """The hash of all weights is finer than any number in a log."""
    (step, a), (other, b) = ((run.end.get("step"), run.end.get("weights_hash")) for run in runs)
    if None in (step, a, b) or step != other:
        return False
    says = f"are the same, hash {a}" if a == b else f"differ, hashes {a} and {b}"
    print(guard.printable(f"The weights after step {step} {says}."))
    return a != b


def compare_two(runs, labels, tolerance):
    """Returns the exit status."""
    print()
    found = [(print_column(*(getattr(run, series) for run in runs), title, first, tolerance), title)
             for series, title, first in COLUMNS]
    if all(steps is None for steps, _ in found):
        raise run_logs.LogError(f"{labels[0]} and {labels[1]} have no step in common; there is nothing to compare")
    parts = [(steps[0], title) for steps, title in found if steps]
    other_weights = weights_differ(runs) and tolerance == 0
    print(f"The runs part at step {min(parts)[0]:,} ({min(parts)[1]})." if parts else
          "The logs are alike as far as both go.")
    return 1 if parts or other_weights else 0


def compare(paths, tolerance, as_csv):
    """Prints all of it. Returns the exit status. Of a sweep, what holds no run is left out: pictures and tables."""
    found = {}
    for path in paths:
        try:
            found[path] = run_logs.read_run(path)
        except run_logs.LogError as error:
            if len(paths) <= 2:
                raise
            print(guard.printable(f"compare.py: left out: {error}"), file=sys.stderr)
    runs, labels = list(found.values()), run_logs.labels(found)
    for label in (label for run, label in zip(runs, labels) if not run.start):
        print(f"compare.py: {label}: has no run.jsonl, so its options are not compared", file=sys.stderr)
    rows = table(runs, labels)
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(
            [guard.printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        return 0
    print_table(zip(*rows) if len(runs) == 2 else rows)
    return compare_two(runs, labels, tolerance) if len(runs) == 2 else 0


def main():
    parser = guard.Parser(__doc__, status=2, prog="compare.py")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="T", help="what counts as alike (0)")
    parser.add_argument("--csv", action="store_true", help="the table only, as comma-separated values")
    options = parser.parse_args()
    try:
        return compare(options.runs, options.tolerance, options.csv)
    except run_logs.LogError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
