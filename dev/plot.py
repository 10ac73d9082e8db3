#!/usr/bin/env python3
"""Draws training runs over each other: losses, HellaSwag, MMLU, learning rate, gradient norm and tokens per second.

    dev/plot.py log124M                            one run, to curves.png
    dev/plot.py log124M other -x tokens -o a.png   two, against the tokens they have seen
    dev/plot.py log124M --watch                    draws again whenever the logs have grown, until Ctrl-C

A run is its folder (--out-dir of the trainers, or a log folder of llm.c's) or a log file. Needs matplotlib.
"""
import argparse
import math
import os
import re
import shutil
import signal
import sys
import time
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guard  # noqa: E402
import run_logs  # noqa: E402
from run_logs import LogError  # noqa: E402

INSTALL = "apt-get install python3-matplotlib, or python3 -m pip install matplotlib"
FORMATS = (".png", ".pdf", ".svg")

# What OpenAI's own models reach, where it has been published. HellaSwag: all 10,042 validation examples, the ending
# with the lowest mean loss per token (the evaluation of --hellaswag 1), as in llm.c's discussions of its reproductions
# and the baselines of their plots. Losses: on the validation shard of FineWeb 10B that llm.c's scripts make, the
# baselines of the same plots; on that of FineWeb-Edu 10B, the baseline of build-nanogpt's plot.
SOURCES = """\
  HellaSwag, FineWeb: the baselines of llm.c's plots, github.com/karpathy/llm.c/discussions 481, 677
  FineWeb-Edu: that of build-nanogpt's plot, github.com/karpathy/build-nanogpt"""
HELLASWAG_EXAMPLES = 10042
REFERENCES = {
    "124M": {"hellaswag": 0.294, "fineweb": 3.42, "fineweb-edu": 3.29},
    "350M": {"hellaswag": 0.375, "fineweb": 3.08},
    "774M": {"hellaswag": 0.432, "fineweb": 3.00},
    "1558M": {"hellaswag": 0.489, "fineweb": 2.83},
}
DATA_NAMES = {"fineweb": "FineWeb", "fineweb-edu": "FineWeb-Edu"}
CHANCE = 0.25  # HellaSwag and MMLU have four answers

# Okabe and Ito's colours, told apart by people with any kind of colour vision; their yellow and black left out.
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
DASHES = ["-", (0, (5, 1.6)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5))]  # a further round of the colours each
OPEN = (0, (3, 2.2))  # of a run that lies on another
MARKERS = ["o", "s", "^", "D"]
VAL_COLOR = "#D55E00"  # of a run that is alone; its training loss has COLORS[0]
GRAY = "#555555"

X_NAMES = ("steps", "tokens", "hours")
PANELS = {"loss": "Loss", "hellaswag": "HellaSwag accuracy", "mmlu": "MMLU accuracy", "lr": "Learning rate",
          "norm": "Gradient norm", "speed": "Tokens per second"}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COLUMNS = 1400  # points drawn of a curve, about one for each column of the picture
TERMINAL = sys.stdout is not None and sys.stdout.isatty()


# ---- Numbers ----


def per_run_window(smooth, points):
    """The steps that a point of the smooth curve is the mean of."""
    if smooth is not None:
        return max(smooth, 1)
    return max(points // 100, 5) if points >= 60 else 1


def smoothed(y, window):
    """The running mean, centred, of what is finite. The window is short at the start, where a loss falls fast, and cut
    at the ends. NaN where it holds nothing."""
    if window <= 1 or len(y) < 3:
        return y
    finite = np.isfinite(y)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, y, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    i = np.arange(len(y))
    half = np.minimum(window // 2, (0.2 * i).astype(int))
    low, high = i - half, np.minimum(i + half + 1, len(y))
    count = counts[high] - counts[low]
    mean = (sums[high] - sums[low]) / np.maximum(count, 1)
    return np.where((count > 0) & finite, mean, np.nan)


def block_medians(x, y, window):
    """A smooth curve that single values, however far off, do not move: the medians of blocks, joined by lines."""
    size = min(max(window // 2, 5), len(y) // 8)
    if window <= 1 or size < 3:
        return y
    blocks = len(y) // size
    kept = np.where(np.isfinite(y), y, np.nanmedian(y))[:blocks * size].reshape(blocks, size)
    middles = x[:blocks * size].reshape(blocks, size).mean(axis=1)
    return np.where(np.isfinite(y), np.interp(x, middles, np.median(kept, axis=1)), np.nan)


def break_gaps(steps, x, y):
    """Puts a NaN where the log has a hole, so that no line is drawn across it."""
    if len(x) < 3:
        return x, y
    distance = np.diff(steps)
    holes = np.flatnonzero(distance > np.maximum(20 * np.median(distance), 0.01 * (steps[-1] - steps[0])))
    return np.insert(x, holes + 1, x[holes]), np.insert(y, holes + 1, np.nan)


def thinned(x, y, log_x):
    """The same picture from fewer points: the lowest and the highest of each column of the picture."""
    if len(x) <= 2 * COLUMNS:
        return x, y
    place = np.log(np.maximum(x, 1e-12)) if log_x else x
    column = ((place - place[0]) / max(place[-1] - place[0], 1e-300) * (COLUMNS - 1)).astype(int)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    middle = np.add.reduceat(x, starts) / np.diff(starts, append=len(x))
    low, high = np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)
    return np.repeat(middle, 2), np.stack([low, high], axis=1).ravel()


def finite(values):
    values = np.concatenate([np.asarray(v, float) for v in values]) if values else np.empty(0)
    return values[np.isfinite(values)]


# ---- Curves: what is drawn of a run ----


class Curve:
    """One line of a panel: x and y, and for noisy ones a smooth y."""

    def __init__(self, run, steps, x, y, smooth=1, kind=""):
        self.run, self.kind, self.window = run, kind, smooth
        self.not_finite = x[~np.isfinite(y)]
        y = np.where(np.isfinite(y), y, np.nan)
        self.x, self.y = break_gaps(steps, x, y)
        self.smooth = block_medians(self.x, self.y, smooth) if kind == "speed" else smoothed(self.y, smooth)

    def last(self):
        values = self.y[np.isfinite(self.y)]
        return values[-1] if len(values) else math.nan


class View:
    """A run as it is drawn: its logs, colour and place on the x axis."""

    def __init__(self, run, index, label, options):
        self.run, self.label, self.options = run, label, options
        self.color = COLORS[index % len(COLORS)]
        self.dashes = DASHES[index // len(COLORS) % len(DASHES)]
        self.marker = MARKERS[index // len(COLORS) % len(MARKERS)]
        self.tokens_per_step = run.tokens_per_step or options.tokens_per_step
        self.data = run.data or (options.data if not run.info else None)

    def x_of(self, steps):
        if self.options.x == "tokens":
            return np.asarray(steps, float) * self.tokens_per_step
        if self.options.x == "hours":
            return np.asarray([math.nan if hour is None else hour for hour in self.run.hours(steps)], float)
        return np.asarray(steps, float)

    def curve(self, points, name, smooth=False, kind=""):
        """The values of a column of the log that have a place on the x axis, or None if there are none."""
        x, y = self.x_of(points.steps), np.asarray(getattr(points, name), float)
        steps = np.asarray(points.steps, float)
        shown = np.isfinite(x) & (steps >= self.options.first_step)
        if self.options.log_x:
            shown &= x > 0
        if not np.isfinite(y[shown]).any():
            return None
        window = per_run_window(self.options.smooth, shown.sum()) if smooth else 1
        return Curve(self, steps[shown], x[shown], y[shown], window, kind)

    def curves(self, panel):
        run = self.run
        wanted = {"loss": [(run.train, "loss", True, "train"), (run.val, "loss", False, "val")],
                  "hellaswag": [(run.hellaswag, "accuracy")], "mmlu": [(run.mmlu, "accuracy")],
                  "lr": [(run.train, "lr")], "norm": [(run.train, "norm", True)],
                  "speed": [(run.speed, "tps", True, "speed")]}[panel]
        return [curve for curve in (self.curve(*what) for what in wanted) if curve is not None]


def check_x(view):
    """Refuses a run that has no place on the x axis."""
    path, x = view.run.path, view.options.x
    if x == "hours" and not len(view.run.speed):
        raise LogError(f"{path}: has no {run_logs.SPEED_LOG} with a line, so its hours are not known; use --x steps "
                       "or --x tokens")
    if x == "tokens" and not view.tokens_per_step:
        raise LogError(f"{path}: has no {run_logs.RUN_JSON} that says how many tokens a step has; give "
                       "--tokens-per-step N, or use --x steps")


# ---- References ----


def references(views, choice):
    """The lines of OpenAI's models that fit these runs: ("hellaswag" or "loss", height, text) each.

    The sizes are those of the runs, or those that the option names. A line of losses only on the data it was measured
    on, one of HellaSwag not where a run has scored a part of the examples."""
    lines = []
    for size, figures in REFERENCES.items():
        fitting = [view for view in views if (view.run.size == size if choice is None else size in choice)]
        if any(whole_hellaswag(view.run) for view in fitting):
            lines.append(("hellaswag", figures["hellaswag"], f"GPT-2 {size}: {100 * figures['hellaswag']:.1f} %"))
        for data in sorted({view.data for view in fitting} & set(figures)):
            lines.append(("loss", figures[data], f"GPT-2 {size}, {DATA_NAMES[data]}: {figures[data]:.2f}"))
    return lines


def whole_hellaswag(run):
    examples = run.part("options", "eval-examples", kind=int) or 0
    return len(run.hellaswag) > 0 and not 0 < examples < HELLASWAG_EXAMPLES


# ---- The picture ----


def style():
    matplotlib.rcParams.update({
        "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "axes.titlepad": 7, "axes.spines.top": False, "axes.spines.right": False,
        "axes.edgecolor": "#888888", "axes.linewidth": 0.8, "axes.grid": True, "axes.axisbelow": True,
        "axes.labelcolor": "#333333", "grid.color": "#E7E7E7", "grid.linewidth": 0.7, "text.color": "#222222",
        "xtick.color": "#666666", "ytick.color": "#666666", "xtick.labelcolor": "#333333",
        "ytick.labelcolor": "#333333", "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8,
        "legend.frameon": False, "lines.solid_joinstyle": "round", "lines.solid_capstyle": "round",
        "svg.fonttype": "none", "pdf.fonttype": 42, "path.simplify": True})


def grid_rows(names):
    """Which panels stand side by side. The losses have a row of their own."""
    rest = [name for name in names if name != "loss"]
    per_row = max(len(rest), 1) if len(rest) <= 3 else 2 if len(rest) == 4 else 3
    rows = [rest[i:i + per_row] for i in range(0, len(rest), per_row)]
    return ([["loss"]] if "loss" in names else []) + rows


def place_panels(figure, rows, top):
    """Puts the panels into their rows, below `top` (a fraction of the height), with the room that their labels take;
    the left edges are those of one column each. False: they do not fit."""
    renderer, dpi = figure.canvas.get_renderer(), figure.dpi
    width, height = figure.get_size_inches()
    for _ in range(2):  # the labels change with the room that there is
        around = [(axes.get_window_extent(renderer), axes.get_tightbbox(renderer)) for axes in figure.axes]
        left = max(inner.x0 - outer.x0 for inner, outer in around) / dpi
        below = max(inner.y0 - outer.y0 for inner, outer in around) / dpi
        above = max(outer.y1 - inner.y1 for inner, outer in around) / dpi
        ratios = [1.55 if names == ["loss"] and len(rows) > 1 else 1.0 for names in rows]
        unit = (top * height - 0.32 - len(rows) * (above + below) - 0.14 * (len(rows) - 1)) / sum(ratios)
        y = top * height
        for names, ratio in zip(rows, ratios):
            room = (width - 0.12 - 0.16 * len(names)) / len(names) - left
            if unit < 0.3 or room < 0.4:
                return False
            y -= above + unit * ratio
            for i, name in enumerate(names):
                x = 0.06 + left + i * (room + left + 0.16)
                axes = next(axes for axes in figure.axes if axes.panel == name)
                axes.set_position([x / width, y / height, room / width, unit * ratio / height])
            y -= below + 0.14
    return True


def default_size(names, legend_rows):
    return 11.0, {1: 5.2, 2: 7.4}.get(len(grid_rows(names)), 9.6) + 0.18 * max(legend_rows - 1, 0)


def draw_curve(axes, curve, runs, log_x):
    """A noisy curve: the values faint (not under many runs), their running mean clear. Others: a line, with marks where
    there are few points."""
    view, alone = curve.run, runs == 1
    color = VAL_COLOR if alone and curve.kind == "val" else view.color
    if curve.window > 1:
        if runs <= 6:
            x, y = thinned(curve.x, curve.y, log_x)
            axes.plot(x, y, color=color, alpha=0.22 if alone else 0.13, linewidth=0.6, zorder=2)
        x, y = thinned(curve.x, curve.smooth, log_x)
        axes.plot(x, y, color=color, linestyle=view.dashes, zorder=3,
                  linewidth=1.0 if curve.kind == "train" and not alone else 1.3,
                  alpha=0.75 if curve.kind == "train" and not alone else 1.0)
        return
    x, y = thinned(curve.x, curve.y, log_x)
    marker = view.marker if len(x) == 1 or (curve.kind != "train" and 1 < np.isfinite(y).sum() <= 45
                                            and axes.panel in ("loss", "hellaswag", "mmlu")) else None
    axes.plot(x, y, color=color, linestyle=view.dashes, linewidth=1.6, marker=marker, markersize=3.6,
              markeredgecolor="white", markeredgewidth=0.4, zorder=4)


def draw_events(axes, views, curves, alone):
    """At the edges: where a run was resumed (below), and steps whose loss is not a number (above)."""
    edge = axes.get_xaxis_transform()
    for view in views:
        starts = [start.get("from_step") for start in view.run.part("starts", kind=list) or []
                  if isinstance(start, dict)]
        steps = sorted({step for step in starts if isinstance(step, int) and step > view.options.first_step})
        if steps:
            axes.plot(view.x_of(steps), np.full(len(steps), 0.012), linestyle="none", marker="^", markersize=5,
                      color=view.color, transform=edge, zorder=6)
    for curve in curves:
        x = thinned(curve.not_finite, curve.not_finite, False)[0]
        if len(x):
            axes.plot(x, np.full(len(x), 0.985), linestyle="none", marker="x", markersize=4.5, markeredgewidth=1.1,
                      color="#C00000" if alone else curve.run.color, transform=edge, zorder=6)


# ---- Axes ----


def x_unit(name, last):
    """What a tick counts, and the axis's label."""
    if name == "tokens":
        for unit, text in ((1e9, "billions"), (1e6, "millions"), (1e3, "thousands")):
            if last >= 1.5 * unit:
                return unit, f"tokens ({text})"
        return 1.0, "tokens"
    if name == "hours":
        for unit, text in ((1.0, "hours"), (1 / 60, "minutes"), (1 / 3600, "seconds")):
            if last >= 1.5 * unit:
                return unit, f"{text} of training"
        return 1 / 3600, "seconds of training"
    return 1.0, "steps"


def plain(value):
    """12,345 or 0.25: a number with separators and no needless zeros."""
    return f"{value:,.0f}" if value == round(value) and abs(value) >= 1 else f"{value:,.10g}"


def suffixed(value):
    """1.7 M: a number of three digits or so."""
    for unit, suffix in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= unit:
            return f"{value / unit:,.4g}{suffix}"
    return f"{value:.4g}"


def tick_labels(unit=1.0, suffix=""):
    """Numbers on an axis, in units, with separators and all with the same number of decimals."""
    class Labels(matplotlib.ticker.Formatter):
        def format_ticks(self, values):
            texts = [f"{round(value / unit, 6) + 0.0:,.6f}" for value in values]
            while texts and all(text.endswith("0") for text in texts) and "." in texts[0]:
                texts = [text[:-1] for text in texts]
            return [text.rstrip(".") + suffix for text in texts]

        def __call__(self, value, position=None):
            return self.format_ticks([value])[0]

    return Labels()


def set_x_axis(axes, options, first, last, inches):
    unit, _ = x_unit(options.x, last)
    if options.log_x:
        axes.set_xscale("log")
        axes.set_xlim(first, max(last, first * 1.01))
        axes.xaxis.set_major_formatter(
            matplotlib.ticker.FuncFormatter(lambda value, _: plain(float(f"{value / unit:.6g}"))))
    else:
        margin = 0.012 * (last - first) or 1.0 * unit
        axes.set_xlim(first - margin, last + margin)
        axes.xaxis.set_major_locator(UnitLocator(unit, min(max(int(1.1 * inches), 3), 8)))
        axes.xaxis.set_major_formatter(tick_labels(unit))
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def UnitLocator(unit, ticks):
    """Ticks at round numbers of the unit; of steps, at whole ones."""
    locator = matplotlib.ticker.MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10], integer=unit == 1.0)
    if unit == 1.0:
        return locator

    class Scaled(matplotlib.ticker.MaxNLocator):
        def tick_values(self, low, high):
            return np.asarray(locator.tick_values(low / unit, high / unit)) * unit

        def __call__(self):
            return self.raise_if_exceeds(self.tick_values(*self.axis.get_view_interval()))

    return Scaled()


def loss_limits(curves, lines, log_x):
    """The losses that are shown: all but the steep start, which would flatten the rest, and single spikes. A run that
    goes up and stays there is shown."""
    parts = []
    for curve in curves:
        skip = 0 if log_x or len(curve.x) < 12 else max(len(curve.x) // 12, 1)
        parts.append(curve.smooth[skip:] if curve.kind == "train" else curve.y[skip:])
    shown = finite(parts)
    everything = finite([curve.smooth for curve in curves])
    if not len(shown):
        shown = everything
    low = min(everything.min(), *(np.quantile(finite([curve.y]), 0.01) for curve in curves))
    high = shown.max() if log_x or len(shown) < 40 else low + 1.25 * (np.quantile(shown, 0.997) - low)
    if everything.max() - low < 1.8 * (high - low):  # little is gained
        high = everything.max()
    for height in lines:
        if low - 0.6 * (high - low) <= height <= high:
            low = min(low, height - 0.02 * (high - low))
    if not high > low:
        high, low = high + 0.05 * abs(high) + 1e-6, low - 0.05 * abs(low) - 1e-6
    return low, high


def set_loss_axis(axes, curves, lines, log_x):
    low, high = loss_limits(curves, lines, log_x)
    if low > 0 and high / low > 12:
        axes.set_yscale("log")
        axes.set_ylim(low * 0.9, high * 1.15)
        log_ticks(axes, low, high)
    else:
        axes.set_ylim(low - 0.04 * (high - low), high + 0.06 * (high - low))
        axes.yaxis.set_major_formatter(tick_labels())


def log_ticks(axes, low, high):
    """Labels on a logarithmic axis: plain numbers, also between powers of ten where there are few of those."""
    few = high / low < 100
    subs = (1.0, 2.0, 5.0) if few else (1.0,)
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())


def set_accuracy_axis(axes, curves, lines):
    values = finite([curve.y for curve in curves] + [[CHANCE]])
    low, high = values.min(), values.max()
    near = [height for height in lines if height - high < max(2.5 * (high - low), 0.1)]
    high = max([high, *near])
    margin = max(0.1 * (high - low), 0.006)
    axes.set_ylim(max(low - margin, -0.01), min(high + 1.3 * margin, 1.01))
    axes.yaxis.set_major_formatter(tick_labels(0.01, " %"))


def set_norm_axis(axes, curves):
    values = finite([curve.y[len(curve.y) // 50:] for curve in curves])
    if not len(values):
        return
    positive = values[values > 0]
    if len(positive) and values.max() > 6 * np.median(positive):
        axes.set_yscale("log")
        low, high = np.quantile(positive, 0.0005), positive.max()
        axes.set_ylim(low * 0.85, high * 1.2)
        log_ticks(axes, low, high)
    else:
        axes.set_ylim(0, 1.12 * values.max() or 1.0)
        axes.yaxis.set_major_formatter(tick_labels())


def set_speed_axis(axes, curves):
    """Slow single steps (a checkpoint, a first step) must not hide the differences that matter."""
    values = finite([curve.y for curve in curves])
    parts = [finite([curve.y]) for curve in curves]
    low = min(np.quantile(part, 0.01) for part in parts)
    high = max(np.quantile(part, 0.995) for part in parts)
    margin = max(0.25 * (high - low), 0.03 * high)
    axes.set_ylim(max(low - margin, 0), min(high, values.max()) + margin)
    unit, suffix = next(((u, s) for u, s in ((1e9, " B"), (1e6, " M"), (1e3, " k")) if high >= u), (1.0, ""))
    axes.yaxis.set_major_formatter(tick_labels(unit, suffix))


def set_lr_axis(axes, curves):
    high = finite([curve.y for curve in curves]).max()
    if high <= 0:
        return
    power = math.floor(math.log10(high) + 1e-9)
    axes.set_ylim(0, 1.08 * high)
    axes.yaxis.set_major_formatter(tick_labels(10.0**power))
    axes.set_title(f"{axes.get_title('left')}  (× 10{str(power).translate(SUPERSCRIPTS)})")


def draw_references(axes, lines, below):
    """A line across the panel each, its text at the left, where the curves are far from it; beside the text of a line
    that is close."""
    low, high = axes.get_ylim()
    place, column, columns = None, 0, max(int(axes.get_window_extent().width / axes.figure.dpi * 72 / 135), 1)
    for _, height, text in sorted(line for line in lines if low <= line[1] <= high):
        at = (height - low) / (high - low)
        column = (column + 1) % columns if place is not None and at - place < 0.13 else 0
        place = at
        under = below and at > 0.12 or at > 0.88
        axes.axhline(height, color=GRAY, linewidth=1.0, linestyle=(0, (4, 2.5)), zorder=2.5)
        label = axes.annotate(text, (0.012, height), (135 * column, -2.5 if under else 2.5), color=GRAY,
                              xycoords=("axes fraction", "data"), textcoords="offset points", ha="left",
                              va="top" if under else "bottom", fontsize=7.5, zorder=7, in_layout=False)
        label.set_path_effects([matplotlib.patheffects.withStroke(linewidth=2.2, foreground="white")])


# ---- Legends ----


def shortened(text, length=44):
    return text if len(text) <= length else text[:length // 2 - 1] + "…" + text[-(length - length // 2):]


def run_text(view, many):
    """A run's row of the legend: its name, and the last of its figures."""
    text = shortened(view.label).replace("$", r"\$")
    loss, hellaswag = view.curve(view.run.val, "loss"), view.curve(view.run.hellaswag, "accuracy")
    figures = [f"val {loss.last():.4g}"] if loss else []
    figures += [f"HellaSwag {100 * hellaswag.last():.1f} %"] if hellaswag else []
    return text if many or not figures else f"{text}  ({', '.join(figures)})"


def run_legend(figure, views):
    """The runs with their colours, above the panels: as many columns as fit."""
    handles = [matplotlib.lines.Line2D([], [], color=view.color, linestyle=view.dashes, linewidth=2.0)
               for view in views]
    texts = [run_text(view, len(views) > 12) for view in views]
    renderer = figure.canvas.get_renderer()
    for columns in (4, 3, 2, 1):
        if columns > len(views):
            continue
        legend = figure.legend(handles, texts, loc="upper left", ncol=columns, handlelength=2.0, columnspacing=1.8,
                               fontsize=8.5 if len(views) <= 12 else 7.5, bbox_to_anchor=(0.005, 1.0))
        if legend.get_window_extent(renderer).width <= 0.99 * figure.bbox.width or columns == 1:
            return legend
        legend.remove()
    return None


def facts(view):
    """What a run is, in a few words each, the most telling first: for the title of a picture of one run."""
    run = view.run
    gpus = run.part("hardware", "gpus", kind=list) or []
    names = [gpu.get("name") for gpu in gpus if isinstance(gpu, dict)]
    parameters = run.part("model", "parameters", kind=int)
    return [text for text in [
        f"GPT-2 {run.size}" if run.size else f"{suffixed(parameters)} parameters" if parameters else "",
        DATA_NAMES.get(view.data, ""),
        f"{view.tokens_per_step:,} tokens a step" if view.tokens_per_step else "",
        f"{len(names)} x {names[0]}" if names and isinstance(names[0], str) else "",
        run.part("precision", kind=str) or ""] if text]


def loss_key(axes, views, curves, alone):
    """What the kinds of lines in the panel of the losses are."""
    line = matplotlib.lines.Line2D
    windows = {curve.window for curve in curves if curve.kind == "train"}
    train = "train" if windows <= {1} else f"train, mean of {windows.pop():,} steps" if len(windows) == 1 \
        else "train, smoothed"
    handles = []
    if any(curve.kind == "train" for curve in curves):
        handles.append(line([], [], color=views[0].color if alone else GRAY, linewidth=1.3 if alone else 1.0,
                            label=train))
    if any(curve.kind == "val" for curve in curves):
        handles.append(line([], [], color=VAL_COLOR if alone else GRAY, linewidth=1.8, marker="o", markersize=3.6,
                            markeredgecolor="white", markeredgewidth=0.4, label="validation"))
    if any(len(view.run.part("starts", kind=list) or []) > 1 for view in views):
        handles.append(line([], [], color=views[0].color if alone else GRAY, linestyle="none", marker="^",
                            markersize=5, label="resumed"))
    if any(len(curve.not_finite) for curve in curves):
        handles.append(line([], [], color="#C00000" if alone else GRAY, linestyle="none", marker="x", markersize=4.5,
                            label="not a number"))
    axes.legend(handles=handles, loc="upper right", borderaxespad=0.2, handlelength=2.0)


def heading(figure, views, options):
    """The title and, for several runs, their legend. Returns where the panels may begin, as a fraction of the
    height."""
    renderer = figure.canvas.get_renderer()
    inch = 1.0 / figure.get_figheight()
    top = 1.0 - 0.08 * inch
    title = options.title if options.title is not None else views[0].label if len(views) == 1 else ""
    if title:
        text = figure.text(0.008, top, shortened(title, 110).replace("$", r"\$"), fontsize=13, fontweight="bold",
                           va="top", ha="left")
        top -= text.get_window_extent(renderer).height / figure.bbox.height + 0.05 * inch
    if len(views) == 1:
        parts = facts(views[0])
        text = figure.text(0.008, top, "  ·  ".join(parts), fontsize=8.5, color=GRAY, va="top", ha="left")
        while len(parts) > 1 and text.get_window_extent(renderer).x1 > figure.bbox.x1:
            parts.pop()
            text.set_text("  ·  ".join(parts))
        if parts:
            top -= text.get_window_extent(renderer).height / figure.bbox.height + 0.04 * inch
    else:
        legend = run_legend(figure, views)
        legend.set_bbox_to_anchor((0.005, top + 0.04 * inch), transform=figure.transFigure)
        top -= legend.get_window_extent(renderer).height / figure.bbox.height - 0.04 * inch
    return top - 0.12 * inch


def panel_curves(views, options):
    """The curves of each panel that has some, in the order in which panels are drawn."""
    panels = {}
    for name in options.panels or PANELS:
        curves = [curve for view in views for curve in view.curves(name)]
        if name == "lr" and not options.panels and not finite([curve.y for curve in curves]).any():
            continue
        if curves:
            panels[name] = curves
        elif options.panels:
            options.say(f"no run has anything for the panel {name}; it is left out")
    if not panels:
        first = f" from step {options.first_step:,} on" if options.first_step else ""
        raise LogError(f"{', '.join(view.run.path for view in views)}: there is nothing to draw yet{first}")
    return panels


def draw_panel(axes, name, curves, views, lines, options):
    alone = len(views) == 1
    heights = [height for panel, height, _ in lines if panel == name]
    for curve in curves:
        draw_curve(axes, curve, len(views), options.log_x)
    axes.set_title(PANELS[name])
    if name == "loss":
        set_loss_axis(axes, curves, heights, options.log_x)
        draw_events(axes, views, curves, alone)
        loss_key(axes, views, curves, alone)
    elif name in ("hellaswag", "mmlu"):
        set_accuracy_axis(axes, curves, heights)
        axes.axhline(CHANCE, color="#AAAAAA", linewidth=0.9, linestyle=(0, (1, 2)), zorder=1.5)
        label = axes.annotate("chance", (0.988, CHANCE), xycoords=("axes fraction", "data"), va="center", ha="right",
                              fontsize=7, color="#888888", zorder=1.6, in_layout=False)
        label.set_path_effects([matplotlib.patheffects.withStroke(linewidth=3, foreground="white")])
    else:
        {"lr": set_lr_axis, "norm": set_norm_axis, "speed": set_speed_axis}[name](axes, curves)
    draw_references(axes, [line for line in lines if line[0] == name], below=name == "loss")


def picture(views, options):
    """The whole figure."""
    style()
    panels = panel_curves(views, options)
    lines = references(views, options.reference)
    size = options.size or default_size(panels, (len(views) + 2) // 3)
    figure = matplotlib.figure.Figure(figsize=size, dpi=options.dpi, facecolor="white")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    every = np.concatenate([curve.x for curves in panels.values() for curve in curves])
    first, last = (0.0 if not options.first_step and not options.log_x else every.min()), every.max()
    rows = grid_rows(panels)
    for row, names in enumerate(rows):
        for i, name in enumerate(names):
            axes = figure.add_subplot(len(rows), len(names), row * len(names) + i + 1)
            axes.panel = name
            set_x_axis(axes, options, first, last, size[0] / len(names))
            draw_panel(axes, name, panels[name], views, lines, options)
    figure.text(0.5, 0.07 / size[1], x_unit(options.x, last)[1], fontsize=9, ha="center", va="bottom")
    if not place_panels(figure, rows, heading(figure, views, options)):
        raise LogError(f"{options.output}: {len(panels)} panels and the legend do not fit into {size[0]:g} x "
                       f"{size[1]:g} inches; give a larger --size, or fewer --panels")
    return figure


def save(figure, path, dpi):
    """Writes the picture beside its place first, so that a viewer never sees half of one."""
    try:
        with guard.new_file(path) as file:
            figure.savefig(file, format=os.path.splitext(path)[1][1:].lower(), dpi=dpi)
    except OSError as error:
        raise LogError(f"{path}: cannot be written: {error.strerror}") from None


# ---- Options ----


def list_of(known):
    def read(text):
        words = [word for word in text.split(",") if word]
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"'{word}' is unknown; there are: {', '.join(known)}")
        if not words:
            raise argparse.ArgumentTypeError(f"is empty; there are: {', '.join(known)}")
        return words
    return read


def reference_list(text):
    if text in ("auto", "none"):
        return None if text == "auto" else []
    return list_of(REFERENCES)(text)


def size_of(text):
    match = re.fullmatch(r"(\d+(?:\.\d*)?)[xX,](\d+(?:\.\d*)?)", text)
    size = (float(match[1]), float(match[2])) if match else (0, 0)
    if not 2 <= min(size) or not max(size) <= 60:
        raise argparse.ArgumentTypeError(f"'{text}': expected is WIDTHxHEIGHT in inches, each 2 to 60, as in 11x7.4")
    return size


def number_from(low, high=10**18, kind=int):
    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            end = f" to {high:,}" if high < 10**18 else " or more"
            raise argparse.ArgumentTypeError(f"'{text}': expected is a number, {low:,}{end}")
        return value
    return read


def parse_options(arguments):
    sizes = "\n".join(f"  {size + ':':7}HellaSwag {100 * of['hellaswag']:.1f} %, FineWeb loss {of['fineweb']:.2f}"
                      + (f", FineWeb-Edu loss {of['fineweb-edu']:.2f}" if "fineweb-edu" in of else "")
                      for size, of in REFERENCES.items())
    parser = guard.Parser(
        __doc__, prog="plot.py",
        epilog=f"reference lines, OpenAI's GPT-2 models:\n{sizes}\n"
               f"  HellaSwag: all {HELLASWAG_EXAMPLES:,} examples, the ending of the lowest mean loss per token.\n"
               f"{SOURCES}\n\n"
               "exit status: 0, 1 for an error, 130 after Ctrl-C. A picture is put in its place whole or not at all.")
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="a run's folder, or its main.log")
    add("-o", "--output", default="curves.png", metavar="FILE",
        help="the picture (curves.png); .png, or .pdf or .svg for print")
    add("-x", "--x", choices=X_NAMES, default="steps", metavar="AXIS",
        help="what the curves are drawn against: steps, tokens (needs run.json) or hours (needs speed.log)")
    add("--panels", type=list_of(PANELS), metavar="A,B", help=f"only these, of: {','.join(PANELS)}")
    add("--reference", type=reference_list, default=None, metavar="SIZES",
        help="lines of OpenAI's GPT-2: auto (of the runs' sizes), none, or any of " + ",".join(REFERENCES))
    add("--watch", nargs="?", type=number_from(0.1, 86400, float), const=30.0, metavar="SECONDS",
        help="look every SECONDS (30) and draw again when a log has grown; waits for runs that have not begun; "
             "ends with Ctrl-C")
    add("--smooth", type=number_from(0), metavar="STEPS",
        help="noisy curves show the mean of so many steps (1 in 100 of the run's); 0: not smoothed")
    add("--from", dest="first_step", type=number_from(0), default=0, metavar="STEP", help="leave out what was before")
    add("--log-x", action="store_true", help="a logarithmic x axis; shows the steep start too")
    add("--title", help="above the picture (one run: its name)")
    add("--labels", metavar="A,B", help="names of the runs in the legend, instead of their folders'")
    add("--size", type=size_of, metavar="WxH", help="inches (11 wide, the height as it takes)")
    add("--dpi", type=number_from(20, 1200), default=150, help="pixels in an inch (150)")
    add("--tokens-per-step", type=number_from(1), metavar="N", help="of runs without a run.json, for --x tokens")
    add("--data", choices=sorted(DATA_NAMES), help="of runs without a run.json: on what their loss was measured")
    return check_options(parser, parser.parse_args(watch_alone(arguments)))


def watch_alone(arguments):
    """Lets a run follow on --watch, whose number may be left out."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return [word + "=30" if word == "--watch" and not re.fullmatch(r"-.*|\.?\d[-+.\deE]*", following) else word
            for word, following in zip(arguments, arguments[1:] + ["-"])]


def check_options(parser, options):
    if os.path.splitext(options.output)[1].lower() not in FORMATS:
        parser.error(f"--output {options.output}: expected is a name that ends in {', '.join(FORMATS)}")
    if os.path.isdir(options.output):
        parser.error(f"--output {options.output}: is a folder; expected is the picture's name")
    options.names = options.labels.split(",") if options.labels is not None else run_logs.labels(options.runs)
    if len(options.names) != len(options.runs):
        parser.error(f"--labels: {len(options.names)} names for {len(options.runs)} runs; expected is one for each")
    said = set()

    def say(text):
        """A remark, once."""
        if text not in said:
            said.add(text)
            print(guard.printable(f"plot.py: {text}"), file=sys.stderr, flush=True)

    options.say = say
    return options


# ---- Drawing once, and again and again ----


def read_views(options):
    views = []
    for index, (path, label) in enumerate(zip(options.runs, options.names)):
        run = run_logs.read_run(path)
        for note in run.notes:
            options.say(note)
        if run.last_step < 0:
            raise LogError(f"{path}: its {run_logs.MAIN_LOG} holds no line yet; --watch waits for one")
        views.append(View(run, index, label, options))
        check_x(views[-1])
    for i, view in enumerate(views[:len(COLORS)]):
        if any(covers(view.run, other.run) for other in views[:i]):
            view.dashes = OPEN  # the other one shows through
    if options.x == "steps" and len({view.tokens_per_step for view in views} - {None}) > 1:
        options.say("the runs differ in tokens per step; --x tokens lays the same amount of training over each other")
    return views


def covers(run, other):
    """Does a run's curve hide the other's? Their losses are as good as the same in most steps that both have."""
    a, b = run.train.by_step("loss"), other.train.by_step("loss")
    apart = [abs(a[step] - b[step]) for step in a.keys() & b.keys()]
    return bool(apart) and sorted(apart)[len(apart) // 2] < 0.002


def draw(options):
    """Draws the picture. Returns a line about it."""
    views = read_views(options)
    save(picture(views, options), options.output, options.dpi)
    steps = ", ".join(f"{view.label} at step {view.run.last_step:,}" for view in views[:3])
    more = f" and {len(views) - 3} more" if len(views) > 3 else ""
    return f"{options.output}: {steps}{more}"


def watch(options):
    """Draws whenever a log has changed, until a signal ends it."""
    drawn = None
    while True:
        state = run_logs.fingerprint(options.runs)
        if state != drawn:
            try:
                tell(f"{draw(options)} ({time.strftime('%H:%M:%S')})")
            except LogError as error:
                tell(f"waiting: {error}")
            drawn = state
        time.sleep(options.watch)


def tell(text):
    """What a watched run is at: on a terminal one line, written over the last one."""
    if not TERMINAL:
        print(text, flush=True)
        return
    width = shutil.get_terminal_size().columns
    sys.stdout.draw(text[:max(width - 1, 10)])


def import_matplotlib():
    """matplotlib without its pyplot, which would keep every picture."""
    global matplotlib, np
    try:
        import matplotlib
        import matplotlib.backends.backend_agg
        import matplotlib.figure
        import matplotlib.lines
        import matplotlib.patheffects
        import matplotlib.ticker
        import numpy as np
        warnings.simplefilter("ignore")  # a letter that the font does not have
    except ImportError as error:
        raise LogError(f"{sys.executable} has no matplotlib ({error}); install it: {INSTALL}") from None


def main(arguments=None):
    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # takes half a picture away first
    try:
        import_matplotlib()
        if options.watch is None:
            print(draw(options), flush=True)
        else:
            watch(options)
    except LogError as error:
        print(guard.printable(f"plot.py: {error}"), file=sys.stderr)
        return 1
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"plot.py: standard output: could not be written: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if options.watch is not None and TERMINAL:
            print()
        return 130
    return 0


if __name__ == "__main__":
    guard.screens("stdout", "stderr", errors="backslashreplace")  # a run's name holds letters of every kind
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
