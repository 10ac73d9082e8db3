#!/usr/bin/env python3
"""Draws training runs over each other: losses, HellaSwag, MMLU, learning rate, gradient norm and tokens per second.

    dev/plot.py log124M                            one run, to curves.png
    dev/plot.py log124M other -x tokens -o a.png   two, against the tokens they have seen

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's) or a log file. Needs matplotlib.
"""
import os
import sys
import warnings

import guard
import run_logs
from run_logs import LogError

# What OpenAI's own models reach. HellaSwag: all validation examples, the ending with the lowest mean loss per token, as
# --hellaswag 1 counts. Losses: on the validation shards of FineWeb 10B and FineWeb-Edu 10B. Published: the baselines of
# the plots in github.com/karpathy/llm.c/discussions 481 and 677, and of github.com/karpathy/build-nanogpt.
REFERENCES = {
    "124M": {"hellaswag": 0.294, "fineweb": 3.42, "fineweb-edu": 3.29},
    "350M": {"hellaswag": 0.375, "fineweb": 3.08},
    "774M": {"hellaswag": 0.432, "fineweb": 3.00},
    "1558M": {"hellaswag": 0.489, "fineweb": 2.83},
}
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]  # Okabe and Ito's
PANELS = {"loss": "Loss (marks: validation)", "hellaswag": "HellaSwag accuracy", "mmlu": "MMLU accuracy",
          "lr": "Learning rate", "norm": "Gradient norm", "tps": "Tokens per second"}


# ---- What is drawn of a run ----


def points(run, name, options):
    """x and y of a series."""
    series = getattr(run, name)
    if options.x == "tokens" and not run.tokens_per_step:
        raise LogError(f"{run.path}: has no {run_logs.RECORD} that says how many tokens a step has; use -x steps")
    steps, y = np.array(list(series), float), np.array(list(series.values()))
    return steps * run.tokens_per_step if options.x == "tokens" else steps, y


def smoothed(y, window):
    """The running mean of what is finite, centred. The window is short at the start, where a loss falls fast."""
    finite = np.isfinite(y)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, y, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    i = np.arange(len(y))
    half = np.minimum(window // 2, i // 5)
    low, high = i - half, np.minimum(i + half + 1, len(y))
    return np.where(finite, (sums[high] - sums[low]) / np.maximum(counts[high] - counts[low], 1), np.nan)


def references(runs):
    """(panel, height, text) of OpenAI's models of the runs' sizes. Losses are drawn on the data they are about."""
    lines = set()
    for run in runs:
        figures = REFERENCES.get(run.size, {})
        if "hellaswag" in figures and run.hellaswag and run.part("options", "eval-examples") in (None, "0"):
            percent = 100 * figures["hellaswag"]
            lines.add(("hellaswag", figures["hellaswag"], f"GPT-2 {run.size}: {percent:.1f} %"))
        if run.data in figures:
            lines.add(("loss", figures[run.data], f"GPT-2 {run.size}, {run.data}: {figures[run.data]:.2f}"))
    return sorted(lines)


def label_of(run, label):
    """A run's row of the legend: its name and its last validation loss. A $ would begin a formula."""
    val = f", val {list(run.val.values())[-1]:.4g}" if run.val else ""
    return f" {label}{val}".replace("$", r"\$")


# ---- The picture ----


def draw_run(axes, panel, run, style, options):
    """A noisy curve: the values faint, their running mean clear. Validation losses: marks."""
    x, y = points(run, panel, options)
    if panel in ("loss", "norm", "tps") and len(y) >= 60:
        axes.plot(x, y, color=style["color"], alpha=0.2, linewidth=0.6)
        y = smoothed(y, max(len(y) // 100, 5))
    axes.plot(x, y, marker="." if len(x) == 1 else None, **style)
    if panel == "loss":
        axes.plot(*points(run, "val", options), marker="o", markersize=4, markeredgecolor="white", **style)


def limit_loss(axes, runs, lines, options):
    """Leaves out the steep start, which would flatten the rest, and single spikes. Shows a run that goes up and stays
    there, and the lines that are near."""
    shown = []
    for run in runs:
        loss, val = points(run, "loss", options)[1], points(run, "val", options)[1]
        shown += [smoothed(loss, len(loss) // 20)[len(loss) // 12:], val[len(val) // 12:]]
    shown = np.concatenate(shown)
    shown = shown[np.isfinite(shown)]
    if len(shown):
        low, high = shown.min(), shown.max()
        low = min([low, *(height for _, height, _ in lines if height > low - 0.6 * (high - low))])
        margin = 0.06 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)


def draw_lines(axes, lines):
    for _, height, text in lines:
        axes.axhline(height, color="#555555", linewidth=1.0, linestyle="--")
        axes.annotate(text, (0.01, height), (0, 3), color="#555555", fontsize=8, textcoords="offset points",
                      xycoords=("axes fraction", "data"), annotation_clip=True)


def picture(runs, options):
    """The whole figure: the losses above, the other panels below. Later runs are drawn thinner, so that a run that lies
    on another one does not hide it."""
    wanted = [panel for panel in PANELS if any(getattr(run, panel) or panel == "loss" and run.val for run in runs)]
    if not wanted:
        raise LogError(f"{', '.join(run.path for run in runs)}: there is nothing to draw yet")
    rest = [panel for panel in wanted if panel != "loss"]
    rows = [row for row in (["loss"] * max(len(rest), 1) if "loss" in wanted else [], rest) if row]
    figure = matplotlib.figure.Figure(figsize=(11, 4 * len(rows)), dpi=150, layout="constrained")
    styles = [{"color": COLORS[i % len(COLORS)], "linewidth": max(2.4 - 0.6 * i, 0.9)} for i in range(len(runs))]
    for panel, axes in figure.subplot_mosaic(rows).items():
        lines = [line for line in references(runs) if line[0] == panel]
        for run, style in zip(runs, styles):
            draw_run(axes, panel, run, style, options)
        if panel == "loss":
            limit_loss(axes, runs, lines, options)
        draw_lines(axes, lines + ([("", 0.25, "chance")] if panel in ("hellaswag", "mmlu") else []))
        axes.set_title(PANELS[panel], loc="left", fontsize=10)
        axes.set_xlabel(options.x)
        axes.grid(color="#E7E7E7")
        axes.locator_params(axis="x", nbins=10 if panel == "loss" else 4)
    handles = [matplotlib.lines.Line2D([], [], **style) for style in styles]
    figure.axes[0].legend(handles, map(label_of, runs, options.labels), loc="upper right", fontsize=9)
    return figure


def draw(options):
    """Draws the picture. Returns a line about it."""
    runs = [run_logs.read_run(path) for path in options.runs]
    for note in (note for run in runs for note in run.notes):
        print(f"plot.py: {guard.printable(note)}", file=sys.stderr)
    figure = picture(runs, options)
    try:
        with guard.new_file(options.output) as file:
            figure.savefig(file, format=os.path.splitext(options.output)[1][1:])
    except OSError as error:
        raise LogError(f"{options.output}: cannot be written: {error.strerror}") from None
    steps = ", ".join(f"{label} at step {run.last_step:,}" for run, label in zip(runs, options.labels))
    return f"{options.output}: {steps}"


# ---- Options ----


def parse_options(parser, arguments):
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    add("-o", "--output", default="curves.png", metavar="FILE", help="the picture, .png, .pdf or .svg (curves.png)")
    add("-x", choices=("steps", "tokens"), default="steps",
        help="what the curves are drawn against (steps); tokens needs run.jsonl")
    options = parser.parse_args(arguments)
    if not options.output.endswith((".png", ".pdf", ".svg")):
        parser.error(f"--output {options.output}: expected is a name that ends in .png, .pdf or .svg")
    options.labels = run_logs.labels(options.runs)
    return options


def main():
    global matplotlib, np
    parser = guard.Parser(__doc__, prog="plot.py")
    options = parse_options(parser, None)
    try:
        import matplotlib.figure
        import matplotlib.lines
        import numpy as np
        warnings.simplefilter("ignore")  # a letter that the font does not have
        print(draw(options), flush=True)
    except ImportError as error:
        parser.error(f"{sys.executable} has no matplotlib ({error}); install it: apt-get install python3-matplotlib, "
                     f"or {sys.executable} -m pip install matplotlib")
    except LogError as error:
        parser.error(str(error))


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="backslashreplace")  # a run's name holds letters of every kind
    main()
