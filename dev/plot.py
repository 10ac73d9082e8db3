#!/usr/bin/env python3
"""Draws training runs over each other: losses, HellaSwag, MMLU, learning rate, gradient norm and tokens per second.

    dev/plot.py log124M                            one run, to curves.png
    dev/plot.py log124M other -x tokens -o a.png   two, against the tokens they have seen

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's) or a log file. Needs matplotlib.
"""
import sys
import warnings

import guard
import run_logs

try:
    import matplotlib.figure
    import matplotlib.lines
    import numpy as np
    MISSING = None
except ImportError as problem:
    MISSING = problem

# What OpenAI's own models reach, by layers x channels. HellaSwag: all validation examples, the ending with the lowest
# mean loss per token, as --hellaswag 1 counts. Losses: on the validation shards of FineWeb 10B and FineWeb-Edu 10B.
# Published: the baselines of the plots in github.com/karpathy/llm.c/discussions 481 and 677, and of
# github.com/karpathy/build-nanogpt.
REFERENCES = {
    "12 x 768": {"name": "124M", "hellaswag": 0.294, "fineweb": 3.42, "edu_fineweb": 3.29},
    "24 x 1024": {"name": "350M", "hellaswag": 0.375, "fineweb": 3.08},
    "36 x 1280": {"name": "774M", "hellaswag": 0.432, "fineweb": 3.00},
    "48 x 1600": {"name": "1558M", "hellaswag": 0.489, "fineweb": 2.83},
}
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]  # Okabe and Ito's
PANELS = {"loss": "Loss (marks: validation)", "hellaswag": "HellaSwag accuracy", "mmlu": "MMLU accuracy",
          "lr": "Learning rate", "norm": "Gradient norm", "tps": "Tokens per second"}


def points(run, name, axis):
    """x and y of a series."""
    if axis == "tokens" and not run.tokens_per_step:
        raise run_logs.LogError(f"{run.path}: no run.jsonl says how many tokens a step has; use -x steps")
    series = getattr(run, name)
    scale = run.tokens_per_step if axis == "tokens" else 1
    return np.array(list(series), float) * scale, np.array(list(series.values()))


def references(run):
    """(panel, height, text) of OpenAI's model of the run's size. The loss is that on the run's data."""
    model, options = run.part("model"), run.part("options")
    figures = REFERENCES.get(f"{model.get('layers')} x {model.get('channels')}", {})
    data = str(options.get("val-data") or options.get("train-data")).replace("fineweb_edu", "edu_fineweb")
    name = next((name for name in ("edu_fineweb", "fineweb") if name in data), None)
    if figures and run.hellaswag and options.get("eval-examples", "0") == "0":
        yield "hellaswag", figures["hellaswag"], f"GPT-2 {figures['name']}: {100 * figures['hellaswag']:.1f} %"
    if name in figures:
        yield "loss", figures[name], f"GPT-2 {figures['name']}, {name}: {figures[name]:.2f}"


def draw_run(axes, panel, run, style, axis):
    """A noisy curve: the values faint, their running mean clear. Validation losses: marks."""
    x, y = points(run, panel, axis)
    if panel in ("loss", "norm", "tps") and len(y) >= 60:
        axes.plot(x, y, color=style["color"], alpha=0.2, linewidth=0.6)
        window = max(len(y) // 100, 5)
        x, y = x[window // 2:][:len(y) - window + 1], np.convolve(y, np.full(window, 1 / window), "valid")
    axes.plot(x, y, marker="." if len(x) == 1 else None, **style)
    if panel == "loss":
        axes.plot(*points(run, "val", axis), marker="o", markersize=4, markeredgecolor="white", **style)


def limit_loss(axes, runs, lines):
    """Leaves out the steep start, which would flatten the rest, and single spikes."""
    shown = [y[len(y) // 12:] for run in runs for y in (points(run, name, "steps")[1] for name in ("loss", "val"))]
    shown = np.concatenate(shown)
    if np.isfinite(shown).any():
        low, high = np.quantile(shown[np.isfinite(shown)], (0.002, 0.998))
        low = min([low, *(height for _, height, _ in lines)])
        axes.set_ylim(low - 0.06 * (high - low) - 0.01, high + 0.06 * (high - low) + 0.01)


def picture(runs, labels, axis):
    """The whole figure: the losses above, the other panels below. Later runs are drawn thinner, so that a run that lies
    on another one does not hide it."""
    wanted = [panel for panel in PANELS if any(getattr(run, panel) or panel == "loss" and run.val for run in runs)]
    if not wanted:
        raise run_logs.LogError(f"{', '.join(run.path for run in runs)}: there is nothing to draw yet")
    rest = [panel for panel in wanted if panel != "loss"]
    rows = [row for row in (["loss"] * max(len(rest), 1) if "loss" in wanted else [], rest) if row]
    figure = matplotlib.figure.Figure(figsize=(11, 4 * len(rows)), dpi=150, layout="constrained")
    styles = [{"color": COLORS[i % len(COLORS)], "linewidth": max(2.4 - 0.6 * i, 0.9)} for i in range(len(runs))]
    for panel, axes in figure.subplot_mosaic(rows).items():
        lines = sorted({line for run in runs for line in references(run) if line[0] == panel})
        for run, style in zip(runs, styles):
            draw_run(axes, panel, run, style, axis)
        if panel == "loss":
            limit_loss(axes, runs, lines)
        for _, height, text in lines + ([("", 0.25, "chance")] if panel in ("hellaswag", "mmlu") else []):
            axes.axhline(height, color="#555555", linewidth=1.0, linestyle="--")
            axes.annotate(text, (0.01, height), (0, 3), color="#555555", fontsize=8, textcoords="offset points",
                          xycoords=("axes fraction", "data"), annotation_clip=True)
        axes.set(xlabel=axis)
        axes.set_title(PANELS[panel], loc="left", fontsize=10)
        axes.grid(color="#E7E7E7")
        axes.locator_params(axis="x", nbins=10 if panel == "loss" else 4)
    ends = [f", val {run.val[run_logs.last(run.val)]:.4g}" if run.val else "" for run in runs]
    names = [f" {label}{end}".replace("$", r"\$") for label, end in zip(labels, ends)]  # a $ would begin a formula
    figure.axes[0].legend([matplotlib.lines.Line2D([], [], **style) for style in styles], names, loc="upper right")
    return figure


def main():
    parser = guard.Parser(__doc__, prog="plot.py")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    parser.add_argument("-o", "--output", default="curves.png", metavar="FILE",
                        help="the picture, .png, .pdf or .svg (curves.png)")
    parser.add_argument("-x", choices=("steps", "tokens"), default="steps",
                        help="what the curves are drawn against (steps); tokens needs run.jsonl")
    options = parser.parse_args()
    if MISSING:
        parser.error(f"{sys.executable} has no matplotlib ({MISSING}); install it: apt-get install python3-matplotlib, "
                     f"or {sys.executable} -m pip install matplotlib")
    warnings.simplefilter("ignore")  # a letter that the font does not have
    labels = run_logs.labels(options.runs)
    try:
        runs = list(map(run_logs.read_run, options.runs))
        picture(runs, labels, options.x).savefig(options.output)
    except (run_logs.LogError, OSError, ValueError) as error:  # ValueError: an ending that is no kind of picture
        parser.error(str(error))
    steps = ", ".join(f"{label} at step {run.last_step:,}" for run, label in zip(runs, labels))
    print(f"{guard.printable(options.output)}: {steps}")


if __name__ == "__main__":
    main()
