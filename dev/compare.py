#!/usr/bin/env python3
"""Says where two training runs part: in what they were told, and from which step on in what they logged.

    dev/compare.py log124M other
    dev/compare.py ours theirs --tolerance 0.01     losses that are closer count as alike

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's, which says less), or a main.log. Compared
are the steps that both have logged. Standard library only.

exit status: 0 the logs are alike, 1 they differ, 2 an error, 130 after Ctrl-C.
"""
import argparse
import math
import os
import re
import signal
import statistics
import sys
import textwrap

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guard  # noqa: E402
import run_logs  # noqa: E402
from run_logs import LogError  # noqa: E402

ROWS = 10       # of a table, unless --all says all
WIDTH = 30      # of a value that stands beside its counterpart
NOT_TOLD = ("format", "command", "directory", "starts", "end")  # of run.json
EPSILON = 1e-9  # decimal fractions are not exact

SHAPES, MEASURES = "What shapes the training", "What is measured"
FREE = "What does not shape it: machine, versions, output"


# ---- What the runs were told ----


def option_groups():
    """Long name -> group, by the table of the trainers' options; empty if it is not where it should be."""
    try:
        with open(os.path.join(ROOT, "llmc", "run", "train_options.h"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return {}
    groups = {}
    for row in re.split(r"\n\s*X\(", text)[1:]:
        name, kind, section = re.match(r'\w+, "([\w-]+)".*?\b(SHAPES|ROUNDS|FREE)\w*[^"]*"([^"]*)"', row, re.S).groups()
        measured = section == "Evaluation" or name == "val-data"
        groups[name] = SHAPES if kind != "FREE" else MEASURES if measured else FREE
    return groups


def flattened(value, name=""):
    """{"model.layers": 12, ...}: every leaf of run.json."""
    if isinstance(value, dict):
        return {leaf: found for key, part in value.items()
                for leaf, found in flattened(part, f"{name}.{key}" if name else str(key)).items()}
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        return {f"{name}": f"{len(value)} x " + ", ".join(str(sized(*leaf)) for leaf in value[0].items())}
    return {name: sized(name, value)}


def sized(name, value):
    """A number of bytes as a person reads it; other values as they are."""
    is_size = name.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool)
    return f"{value / 2**30:.2f} GiB" if is_size else value


def told(run):
    """Everything run.json says that two runs can have in common or not: what a run is, not what became of it."""
    info = {key: value for key, value in run.info.items() if key not in NOT_TOLD}
    leaves = flattened(info)
    return {guard.printable(re.sub(r"^options\.", "--", name)): value for name, value in leaves.items()}


def group_of(name, options):
    if name.startswith("--"):
        return options.get(name[2:].replace("_", "-"), SHAPES)
    if name.startswith("data.val"):
        return MEASURES
    shaping = ("model.", "data.", "precision", "tokens_per_step", "steps", "sequences_per_epoch")
    return SHAPES if name.startswith(shaping) else FREE


def text_of(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10000 else str(value)
    return "-" if value is None else guard.printable(str(value)) if value != "" else "''"


def print_differences(runs):
    """What was told differently, in groups."""
    for run, name in zip(runs, "AB"):
        if not run.info:
            print(f"\n{name} has no {run_logs.RUN_JSON}: options, model, data and machine cannot be compared.")
    if not all(run.info for run in runs):
        return
    a, b = map(told, runs)
    options = option_groups()
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    for group in (SHAPES, MEASURES, FREE):
        print(f"\n{group}")
        members = [name for name in names if group_of(name, options) == group]
        both = [name for name in members if name in a and name in b]
        width = max([len(name) for name in both], default=0)
        if both:
            print_pair("", width, "A", "B")
        for name in both:
            print_pair(name, width, text_of(a[name]), text_of(b[name]))
        print_alone("A", [name for name in members if name not in b], a)
        print_alone("B", [name for name in members if name not in a], b)
        if not members:
            print("  no differences")


def print_alone(which, names, values):
    """What the other run does not know: another program has other options, another machine other libraries."""
    if names:
        text = ", ".join(f"{name} {text_of(values[name])}" for name in names)
        print(textwrap.fill(f"only {which} has: {text}", 118, initial_indent="  ", subsequent_indent="    ",
                            break_on_hyphens=False, break_long_words=False))


def print_pair(name, width, a, b):
    if max(len(a), len(b)) <= WIDTH:
        print(f"  {name:{width}}  {a:<{WIDTH}}  {b}")
    else:
        print(f"  {name}\n    A  {a}\n    B  {b}")


# ---- What they logged ----


def alike(a, b, tolerance):
    """NaN is like NaN, and like nothing else."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= tolerance + EPSILON * (tolerance > 0)


def distance(a, b):
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) if math.isfinite(a - b) else math.inf


class Column:
    """A value that both have logged, by step. first: how the trainers print the log's step 0."""

    def __init__(self, title, points, name, form, tolerance, first=0):
        self.title, self.form = title, form
        a, b = (part.by_step(name) for part in points)
        self.rows = [(first + step, a[step], b[step]) for step in sorted(a.keys() & b.keys())
                     if None not in (a[step], b[step])]
        self.apart = [row for row in self.rows if not alike(row[1], row[2], tolerance(row[1], row[2]))]
        self.largest = max(self.rows, key=lambda row: distance(*row[1:]), default=None)

    def say(self, value):
        return format(value, self.form)


def columns(runs, tolerance):
    """Every column that at least one of the runs has. The norm and the rate are logged with few digits: where something
    is tolerated at all, so is their last digit."""
    def plain(a, b):
        return tolerance

    def norm(a, b):
        return tolerance * max(1.0, abs(a), abs(b)) + 0.01 if tolerance > 0 else 0.0

    def rate(a, b):
        return 1e-6 if tolerance > 0 else 0.0

    train, val, hellaswag, mmlu = ([getattr(run, part) for run in runs] for part in
                                   ("train", "val", "hellaswag", "mmlu"))
    found = [Column("training loss", train, "loss", ".4f", plain, 1),
             Column("gradient norm", train, "norm", ".2f", norm, 1),
             Column("learning rate", train, "lr", ".6f", rate, 1), Column("validation loss", val, "loss", ".4f", plain),
             Column("HellaSwag", hellaswag, "accuracy", ".4f", plain), Column("MMLU", mmlu, "accuracy", ".4f", plain)]
    return [column for column in found if column.rows]


def print_columns(found, tolerance):
    within = f", alike within {tolerance:g}" if tolerance > 0 else ""
    print(f"\nWhat they logged (compared as it stands in main.log: losses to 4 decimals, norms to 2{within})")
    width = max(len(column.title) for column in found)
    for column in found:
        title = f"  {column.title:{width}}  "
        if not column.apart:
            print(f"{title}alike in all {len(column.rows):,} common steps{largest_text(column)}")
            continue
        step, a, b = column.apart[0]
        print(f"{title}parts at step {step:,}: {column.say(a)} and {column.say(b)}; "
              f"{len(column.apart):,} of {len(column.rows):,} common steps differ")
        print(f"{'':{width + 4}}{largest_text(column).lstrip('; ')}")


def largest_text(column):
    step, a, b = column.largest
    if distance(a, b) == 0:
        return ""
    return f"; largest difference {distance(a, b):{column.form}} at step {step:,}: {column.say(a)} and {column.say(b)}"


def chosen_rows(column, everything):
    """Rows of a long table that say most: the ends, where it parts, where it is furthest apart, and some between."""
    rows = column.rows
    if everything or len(rows) <= ROWS + 3:
        return rows
    kept = {i * (len(rows) - 1) // (ROWS - 1) for i in range(ROWS)}
    kept |= {rows.index(row) for row in [column.largest, *column.apart[:1]]}
    return [rows[i] for i in sorted(kept)]


def print_tables(found, everything):
    for column in found:
        if column.title not in ("validation loss", "HellaSwag", "MMLU"):
            continue
        rows = chosen_rows(column, everything)
        left_out = f" ({len(rows)} of {len(column.rows):,} rows; --all prints all)" if len(rows) < len(column.rows) \
            else ""
        print(f"\n{column.title[0].upper()}{column.title[1:]}{left_out}\n"
              f"  {'step':>10}  {'A':>9}  {'B':>9}  {'B - A':>9}")
        for step, a, b in rows:
            print(f"  {step:>10,}  {column.say(a):>9}  {column.say(b):>9}  {b - a:>+9.4f}")


# ---- How fast, how long ----


def duration(seconds):
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def print_speed(runs):
    medians = [statistics.median(run.speed.tps) if len(run.speed) else None for run in runs]
    steps = [statistics.median(run.speed.ms) if len(run.speed) else None for run in runs]
    totals = [run.total_seconds() for run in runs]
    if medians == [None, None] and totals == [None, None]:
        print("\nSpeed: neither has a speed.log.")
        return
    print(f"\nSpeed\n  {'':22}{'A':>16}{'B':>16}{'B / A':>10}")
    for title, pair, form in (("tokens/s, median", medians, lambda x: f"{x:,.0f}"),
                              ("ms in a step, median", steps, lambda x: f"{x:,.2f}"),
                              ("time in all", totals, duration)):
        cells = "".join(f"{'-' if value is None else form(value):>16}" for value in pair)
        ratio = f"{pair[1] / pair[0]:>10.3f}" if None not in pair and pair[0] > 0 else f"{'':10}"
        print(f"  {title:22}{cells}{ratio}".rstrip())


# ---- All of it ----


def describe(run, name, label):
    gpus = run.part("hardware", "gpus", kind=list) or []
    gpu = gpus[0].get("name") if gpus and isinstance(gpus[0], dict) else None
    resumes = max(len(run.part("starts", kind=list) or []) - 1, 0)
    facts = [run.part("program", kind=str), run.part("version", kind=str),
             (run.part("git", "revision", kind=str) or "")[:7],
             f"{len(gpus)} x {gpu}" if gpu else run.part("hardware", "cpu", kind=str), run.part("precision", kind=str),
             f"up to step {run.last_step:,}" if run.last_step >= 0 else "nothing logged yet",
             f"resumed {resumes} time{'s' * (resumes > 1)}" if resumes else "", run.part("end", "status", kind=str)]
    print(guard.printable(f"{name}: {label}: {', '.join(str(fact) for fact in facts if fact)}"))


def compare_ends(runs):
    """The hash of all weights, where both have ended at the same step: finer than any number in a log. True if it
    differs."""
    ends = [(run.part("end", "step", kind=int), run.part("end", "weights_hash", kind=str)) for run in runs]
    if not all(value for end in ends for value in end) or ends[0][0] != ends[1][0]:
        return False
    same = ends[0][1] == ends[1][1]
    print(f"\nWeights after step {ends[0][0]:,}: " + (f"the same, hash {ends[0][1]}" if same else
                                                      f"different, hashes {ends[0][1]} and {ends[1][1]}"))
    return not same


def print_verdict(found, runs, weights_differ, tolerance):
    apart = [column for column in found if column.apart]
    last = [run.last_step for run in runs]
    if last[0] != last[1]:
        longer = "A" if last[0] > last[1] else "B"
        print(f"\n{longer} goes on to step {max(last):,}, where the other has nothing to compare.")
    if apart:
        first = min(apart, key=lambda column: column.apart[0][0])
        print(f"\nThe runs part at step {first.apart[0][0]:,} ({first.title}).")
    elif weights_differ and tolerance == 0:
        print("\nThe logs are alike, but the weights are not: they part below the digits that are logged.")
    else:
        within = f" within {tolerance:g}" if tolerance > 0 else ""
        print(f"\nThe runs are alike{within} as far as both go.")
    return 1 if apart or (weights_differ and tolerance == 0) else 0


def compare(paths, tolerance, everything):
    runs = [run_logs.read_run(path) for path in paths]
    for run in runs:
        for note in run.notes:
            print(guard.printable(f"compare.py: {note}"), file=sys.stderr)
    found = columns(runs, tolerance)
    if not found:
        last = " and ".join(f"{run.last_step:,}" if run.last_step >= 0 else "none" for run in runs)
        raise LogError(f"{paths[0]} and {paths[1]} have no step in common, their last ones are {last}; there is "
                       "nothing to compare")
    for run, name, label in zip(runs, "AB", run_logs.labels(paths)):
        describe(run, name, label)
    print_differences(runs)
    print_columns(found, tolerance)
    print_tables(found, everything)
    print_speed(runs)
    return print_verdict(found, runs, compare_ends(runs), tolerance)


def tolerance_of(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}': expected is a number, 0 or more")
    return value


def main(arguments=None):
    parser = guard.Parser(__doc__, status=2, prog="compare.py")
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("--tolerance", type=tolerance_of, default=0.0, metavar="T",
                        help="losses and accuracies that are no further apart than T count as alike (0); with T > 0, "
                             "norms no further apart than T times the norm and 0.01 do too, and rates with 1e-6")
    parser.add_argument("--all", action="store_true", help="print every row of the tables")
    options = parser.parse_args(arguments)
    try:
        status = compare(options.runs, options.tolerance, options.all)
        print(end="", flush=True)
        return status
    except LogError as error:
        print(guard.printable(f"compare.py: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"compare.py: standard output: could not be written: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="backslashreplace")  # run.json holds letters of every kind
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
