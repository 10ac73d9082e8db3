#!/usr/bin/env python3
"""Measures how many tokens Muon needs to reach AdamW's best validation loss, on Shakespeare and one core.

    python3 dev/data/tinyshakespeare.py                once: the text
    python3 dev/data/vocab.py                          once: GPT-2's tokenizer
    make train_gpt2
    python3 dev/bench/muon_sweep.py                    trains, prints the tables
    python3 dev/bench/muon_sweep.py --write            trains, writes the tables into doc/muon.md
    python3 dev/figures/draw.py                        draws the curves

Both optimizers run with the seeds 1, 2 and 3 at each of their learning rates. Muon gives AdamW's part of the model the
rate that was best for AdamW alone. Then Muon runs at its best rate with fewer steps, and with --muon-scale rms at
AdamW's best rate. Each run is a row of --results. Runs with a row are not made again: without --results NEW.csv, this
prints what was measured before. All runs take about 80 minutes on one core with AVX512-BF16.
"""
import collections
import csv
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import guard  # noqa: E402: it lies in the folder that was just added

TEXT = os.path.join(ROOT, "dev", "data", "tinyshakespeare", "tiny_shakespeare.txt")
RESULTS = os.path.join(ROOT, "dev", "bench", "results", "muon_sweep.csv")
CHAPTER = os.path.join(ROOT, "doc", "muon.md")
BEGIN, END = "<!-- dev/bench/muon_sweep.py --write writes what follows -->\n", "<!-- until here -->\n"

SEEDS = (1, 2, 3)
PARTS = (0.3, 0.4, 0.5, 0.6)  # of the steps, for Muon's shorter runs
TOKENS_A_STEP = 16 * 64
MODEL = ("--layers 6 --heads 6 --channels 96 --context 64 --seq-len 64 --batch-size 16 --precision bf16 --shuffle "
         "--weight-decay 0.1 --schedule cosine --final-lr-frac 0.1 --val-sequences 128 --sample-every 0").split()

# rates: optimizer to learning rates.
Task = collections.namedtuple("Task", "name tokenizer steps val_every rates")
TASKS = (Task("bytes", "byte", 600, 20, {"adamw": (0.001, 0.002, 0.004, 0.008, 0.016, 0.032),
                                         "muon": (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)}),
         Task("gpt2", "gpt2_tokenizer.bin", 200, 20, {"adamw": (0.001, 0.002, 0.004, 0.008, 0.016),
                                             "muon": (0.01, 0.02, 0.04, 0.08, 0.16)}))
NAMES = {"bytes": "bytes", "gpt2": "GPT-2's tokens"}

# A run's key, and what was measured. adamw_rate: of the tensors that AdamW updates. ms: the median step.
KEY = ("task", "optimizer", "rate", "adamw_rate", "steps", "seed")
Run = collections.namedtuple("Run", (*KEY, "ms", "losses"))


# ---- The runs ----


def command(task, optimizer, rate, adamw_rate, steps, seed, threads):
    """Warm-ups take a tenth of the steps: of the rates, and of Muon's momentum."""
    warmup = str(steps // 10)
    muon = ["--optimizer", "muon", "--muon-lr", str(rate), "--muon-warmup", warmup]
    chosen = {"adamw": [], "muon": muon, "muon_rms": [*muon, "--muon-scale", "rms"]}[optimizer]
    return ["./train_gpt2", "--train-data", TEXT, "--tokenizer", task.tokenizer, *MODEL, "--lr", str(adamw_rate),
            *chosen, "--steps", str(steps), "--warmup", warmup, "--val-every", str(task.val_every), "--seed", str(seed),
            "--threads", str(threads)]


def train(task, key, threads):
    words = command(task, *key[1:], threads)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    losses = re.findall(r"^step +(\d+)/\d+ \| val loss ([\d.]+|-?nan|inf)$", done.stdout, re.M)
    times = [float(ms) for ms in re.findall(r"\| *([\d.]+) ms \|", done.stdout)]
    if done.returncode != 0 or not losses:
        sys.exit(f"muon_sweep.py: status {done.returncode} of {' '.join(words)}: {done.stdout[-500:].strip()}")
    return Run(*key, round(statistics.median(times), 2), [(int(step), float(loss)) for step, loss in losses])


class Results:
    """The rows of the file. A run that has none is made, and its row is added."""

    def __init__(self, path, threads=None):
        self.path, self.threads, self.runs = path, threads, {}
        if os.path.exists(path):
            with guard.open_file(path, "r", newline="") as file:
                for row in csv.DictReader(file):
                    self.add(row)

    def add(self, row):
        losses = [point.split(":") for point in row["losses"].split()]
        key = (row["task"], row["optimizer"], float(row["rate"]), float(row["adamw_rate"]), int(row["steps"]),
               int(row["seed"]))
        self.runs[key] = Run(*key, float(row["ms"]), [(int(step), float(loss)) for step, loss in losses])

    def get(self, task, optimizer, rate, adamw_rate, steps):
        """The runs with all seeds."""
        return [self.run(task, (task.name, optimizer, rate, adamw_rate, steps, seed)) for seed in SEEDS]

    def run(self, task, key):
        if key not in self.runs:
            if self.threads is None:
                raise KeyError(key)
            self.runs[key] = train(task, key, self.threads)
            self.append(self.runs[key])
            print(f"{' '.join(map(str, key))}: {final(self.runs[key]):.4f}", flush=True)
        return self.runs[key]

    def append(self, run):
        first = not os.path.exists(self.path)
        with guard.open_file(self.path, "a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if first:
                writer.writerow(Run._fields)
            writer.writerow([*run[:-1], " ".join(f"{step}:{loss}" for step, loss in run.losses)])


# ---- What they say ----


def final(run):
    return run.losses[-1][1]


def mean_final(runs):
    return statistics.mean(map(final, runs))


def mean_curve(runs):
    """(step, mean loss) of runs with different seeds."""
    return [(points[0][0], statistics.mean(loss for _, loss in points)) for points in zip(*(r.losses for r in runs))]


def first_below(points, loss):
    """Where a line through points (x, loss) first comes down to a loss. None: it does not."""
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if y1 <= loss:
            return x1 if y0 <= y1 else x0 + (x1 - x0) * max(y0 - loss, 0) / (y0 - y1)
    return None


class Sweep:
    """All runs of a task, and their comparison. Steps and losses are means over the seeds."""

    def __init__(self, results, task):
        self.task = task
        self.adamw = {rate: results.get(task, "adamw", rate, rate, task.steps) for rate in task.rates["adamw"]}
        self.adamw_rate = min(self.adamw, key=lambda rate: mean_final(self.adamw[rate]))
        self.muon = {rate: results.get(task, "muon", rate, self.adamw_rate, task.steps) for rate in task.rates["muon"]}
        self.muon_rate = min(self.muon, key=lambda rate: mean_final(self.muon[rate]))
        self.short = {steps: results.get(task, "muon", self.muon_rate, self.adamw_rate, steps)
                      for steps in (round(part * task.steps) for part in PARTS)}
        self.rms = results.get(task, "muon_rms", self.adamw_rate, self.adamw_rate, task.steps)
        self.best = {"adamw": self.adamw[self.adamw_rate], "muon": self.muon[self.muon_rate]}
        self.target = mean_final(self.best["adamw"])

    def steps_within(self):
        """Steps of Muon's full run until it has AdamW's final loss."""
        return first_below(mean_curve(self.best["muon"]), self.target)

    def steps_shorter(self):
        """Steps of the run of Muon that ends with AdamW's final loss, between the lengths that were run."""
        lengths = {**self.short, self.task.steps: self.best["muon"]}
        return first_below([(steps, mean_final(runs)) for steps, runs in sorted(lengths.items())], self.target)


# ---- The tables ----


def table(head, rows):
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|",
                      *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def percent(steps, task):
    return "never" if steps is None else f"{100 * steps / task.steps:.0f} %"


def seeds_of(runs):
    losses = sorted(map(final, runs))
    return f"{statistics.mean(losses):.3f} ({losses[0]:.3f} to {losses[-1]:.3f})"


def rates_table(sweep):
    """A row for each learning rate: the last losses of both optimizers, mean and range over the seeds."""
    rows = []
    for columns in zip(*(((f"{rate:g}", seeds_of(runs)) for rate, runs in by_rate.items())
                         for by_rate in (sweep.adamw, sweep.muon))):
        rows.append([cell for column in columns for cell in column])
    return table(["AdamW's rate", "last loss", "Muon's rate", "last loss"], rows)


def summary(sweep):
    """(what, a number of this task)"""
    task, adamw, muon = sweep.task, sweep.best["adamw"], sweep.best["muon"]
    ms = [min(run.ms for runs in by_rate.values() for run in runs) for by_rate in (sweep.adamw, sweep.muon)]
    return (("AdamW's tokens", f"{task.steps * TOKENS_A_STEP:,}"),
            ("AdamW's best rate, its last loss", f"{sweep.adamw_rate:g}: {mean_final(adamw):.3f}"),
            ("Muon's best rate, its last loss", f"{sweep.muon_rate:g}: {mean_final(muon):.3f}"),
            ("Muon with `--muon-scale rms` and AdamW's best rate", f"{mean_final(sweep.rms):.3f}"),
            ("**Muon's run has AdamW's last loss after**", f"**{percent(sweep.steps_within(), task)}** of the tokens"),
            ("**a run of Muon that ends with this loss takes**",
             f"**{percent(sweep.steps_shorter(), task)}** of the tokens"),
            ("a step in the fastest run of AdamW, of Muon", f"{ms[0]:.0f} ms, {ms[1]:.0f} ms"))


def tables(results):
    sweeps = [Sweep(results, task) for task in TASKS]
    rows = [[columns[0][0], *(number for _, number in columns)] for columns in zip(*map(summary, sweeps))]
    parts = [table(["tokens are", *(NAMES[task.name] for task in TASKS)], rows)]
    return "\n".join(parts + [f"The sweep with {NAMES[sweep.task.name]}:\n\n{rates_table(sweep)}" for sweep in sweeps])


def write_tables(text):
    with guard.open_file(CHAPTER, "r", encoding="utf-8") as file:
        page = file.read()
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if end == "":
        sys.exit(f"muon_sweep.py: expected the lines '{BEGIN.strip()}' and '{END.strip()}' in doc/muon.md")
    with guard.new_file(CHAPTER, "w", encoding="utf-8") as file:
        file.write(f"{head}{begin}\n{text}\n{end}{tail}")


def main():
    parser = guard.Parser(__doc__)
    parser.add_argument("--results", default=RESULTS, help="the file of results (default: the one in this repository)")
    parser.add_argument("--threads", type=int, default=1, help="of a run; its losses do not depend on them (default 1)")
    parser.add_argument("--write", action="store_true", help="write the tables into doc/muon.md, too")
    options = parser.parse_args()
    text = tables(Results(options.results, options.threads))
    print(text, end="")
    if options.write:
        write_tables(text)


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    main()
