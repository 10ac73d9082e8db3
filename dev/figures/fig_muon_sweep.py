"""Figure of doc/muon.md: the losses of dev/bench/results/muon_sweep.csv."""
import math
import os
import sys

from svg import curve, document, line, rect, text

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import muon_sweep  # noqa: E402: it lies in the folder that was just added

COLOURS = {"adamw": "b", "muon": "a"}
LEFT, TOP, WIDTH, HEIGHT, DOWN = 44, 56, 330, 190, 286
RATES = (1e-3, 0.2)  # of the axis


class Panel:
    """Axes. Points outside are moved to the border."""

    def __init__(self, x, y, title, x_range, y_range):
        self.x, self.y, self.x_range, self.y_range = x, y, x_range, y_range
        self.parts = [text(x, y - 28, title, "title"), line(x, y - 8, x, y + HEIGHT),
                      line(x, y + HEIGHT, x + WIDTH, y + HEIGHT)]

    def place(self, x, y):
        parts = [(min(max(value, low), high) - low) / (high - low)
                 for value, (low, high) in ((x, self.x_range), (y, self.y_range))]
        return round(self.x + WIDTH * parts[0], 1), round(self.y + HEIGHT * (1 - parts[1]), 1)

    def x_label(self, x, words):
        self.parts.append(text(self.place(x, 0)[0], self.y + HEIGHT + 20, words, "middle"))

    def y_labels(self, step):
        for i in range(math.ceil(self.y_range[0] / step), math.floor(self.y_range[1] / step) + 1):
            x, y = self.place(self.x_range[0], i * step)
            self.parts += [text(x - 6, y + 4, f"{i * step:.1f}", "end"), f'<path class="grid" d="M{x} {y}h4"/>']

    def curve(self, points, name):
        self.parts.append(curve([self.place(*point) for point in points], name))

    def dot(self, x, y, name):
        x, y = self.place(x, y)
        self.parts.append(rect(x - 2.5, y - 2.5, 5, 5, name))


def over_tokens(sweep, x, y):
    low = min(map(muon_sweep.mean_final, sweep.best.values()))
    most = sweep.task.steps * muon_sweep.TOKENS_A_STEP
    panel = Panel(x, y, f"Loss over {muon_sweep.NAMES[sweep.task.name]}", (0, most), (low - 0.1, low + 1.5))
    panel.y_labels(0.5)
    for thousand in range(0, most // 1000 + 1, 100 if most < 400000 else 200):
        panel.x_label(thousand * 1000, f"{thousand}k")
    for name, runs in sweep.best.items():
        points = [(step * muon_sweep.TOKENS_A_STEP, loss) for step, loss in muon_sweep.mean_curve(runs)]
        panel.curve([point for point in points if point[1] < low + 1.5], COLOURS[name])
    for steps, runs in sweep.short.items():
        panel.dot(steps * muon_sweep.TOKENS_A_STEP, muon_sweep.mean_final(runs), "a")
    level = panel.place(0, sweep.target)[1]
    panel.parts.append(f'<path class="grid" d="M{x} {level}h{WIDTH}"/>')
    for i, (name, words) in enumerate((("b", "AdamW"), ("a", "Muon"), ("a", "ends of shorter runs of Muon"))):
        top = y + 6 + 18 * i
        panel.parts += [rect(x + 128, top, 5, 5, name) if i == 2 else rect(x + 122, top + 1, 18, 3, name),
                        text(x + 148, top + 7, words)]
    return panel.parts


def over_rates(sweep, x, y):
    low = min(map(muon_sweep.mean_final, sweep.best.values()))
    panel = Panel(x, y, "Last loss over learning rate", tuple(map(math.log, RATES)), (low - 0.1, low + 0.9))
    panel.y_labels(0.2)
    for rate in (0.001, 0.01, 0.1):
        panel.x_label(math.log(rate), f"{rate:g}")
    for name, by_rate in (("adamw", sweep.adamw), ("muon", sweep.muon)):
        panel.curve([(math.log(rate), muon_sweep.mean_final(runs)) for rate, runs in by_rate.items()], COLOURS[name])
        for rate, runs in by_rate.items():
            for run in runs:
                panel.dot(math.log(rate), muon_sweep.final(run), COLOURS[name])
    return panel.parts


def picture():
    results, parts = muon_sweep.Results(muon_sweep.RESULTS), []
    for i, task in enumerate(muon_sweep.TASKS):
        sweep, y = muon_sweep.Sweep(results, task), TOP + DOWN * i
        parts += [*over_tokens(sweep, LEFT, y), *over_rates(sweep, LEFT + 428, y)]
    return document("Validation losses of AdamW and Muon", 840, TOP + 2 * DOWN - 28, parts)
