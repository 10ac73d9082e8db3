#!/usr/bin/env python3
"""Says where two training runs part: in what they were told, and from which step on in what they logged.

    dev/compare.py log124M other
    dev/compare.py ours theirs --tolerance 0.01     numbers that are closer count as alike

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's, which says less), or a main.log. Compared
are the steps that both have logged, as main.log has them: losses to 4 decimals. Standard library only.

exit status: 0 logs and weights are alike, 1 they differ, 2 an error.
"""
import math
import sys

import guard
import run_logs

# Series, its title, and how the trainers print the log's step 0.
COLUMNS = (("loss", "training loss", 1), ("norm", "gradient norm", 1), ("lr", "learning rate", 1),
           ("val", "validation loss", 0), ("hellaswag", "HellaSwag", 0), ("mmlu", "MMLU", 0))
NOT_TOLD = ("event", "format", "time", "step", "command", "directory")  # of a start


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


def compare(paths, tolerance):
    """Prints all of it. Returns the exit status."""
    runs = [run_logs.read_run(path) for path in paths]
    for note in runs[0].notes + runs[1].notes:
        print(f"compare.py: {guard.printable(note)}", file=sys.stderr)
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


def main():
    parser = guard.Parser(__doc__, status=2, prog="compare.py")
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("--tolerance", type=float, default=0.0, metavar="T", help="what counts as alike (0)")
    options = parser.parse_args()
    if not 0 <= options.tolerance < math.inf:
        parser.error(f"--tolerance {options.tolerance}: expected 0 or more")
    try:
        status = compare(options.runs, options.tolerance)
        print(end="", flush=True)
        return status
    except run_logs.LogError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"standard output: {error.strerror}")


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="backslashreplace")  # run.jsonl holds letters of every kind
    sys.exit(main())
