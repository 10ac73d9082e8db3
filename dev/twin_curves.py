#!/usr/bin/env python3
"""Trains one small model with ./train_gpt2, with the GPU trainer and with train_gpt2.py: same text, same seed, same
batches, same options. Draws the losses over each other, and how far they are apart.

    python3 dev/data/tinyshakespeare.py       once: the text
    make train_gpt2 train_gpt2emu
    python3 dev/twin_curves.py -o doc/curves_pytorch.png
    python3 dev/twin_curves.py --fp8 -o doc/curves_fp8.png

--fp8 makes another picture, of 500 steps: the GPU trainer's 8 bits, its bf16 and fp32 beside PyTorch's bf16.
--cpu makes another, of 300 steps: the CPU trainer's bf16 beside its fp32 and PyTorch's autocast.
Each run has a folder below --runs, with what it printed in out.txt; one that is complete is not made again. Needs torch
and matplotlib. --gpu-trainer ./train_gpt2cu where there is a GPU: the emulator takes a second or two a step.
"""
import os
import re
import shutil
import subprocess
import sys
import textwrap

import guard

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = os.path.join(ROOT, "dev", "data", "tinyshakespeare", "tiny_shakespeare.txt")
MODEL = "--layers 4 --heads 2 --channels 64 --context 64 --seq-len 64".split()
RECIPE = "--lr 1e-3 --warmup 20 --final-lr-frac 0.1 --weight-decay 0.1 --shuffle --seed 42".split()
BATCH = ["--batch-size", "4"]
HALVES = ["--batch-size", "2", "--total-batch", "256"]  # the same batches, added up in another order
OURS, PYTORCH = "#0072B2", "#D55E00"  # Okabe and Ito's colours
GREEN, GRAY = "#009E73", "#999999"
NOT_APART = 4e-7  # where the picture has losses whose printed digits are the same
FP32_EPSILON, BF16_EPSILON = 2.0**-24, 2.0**-9  # the largest relative error of rounding once


def fail(message):
    sys.exit(guard.printable(f"twin_curves.py: {message}"))


# ---- The runs ----


def commands(options):
    """Name -> command of each run that the picture shows."""
    twin = [sys.executable, os.path.join(ROOT, "train_gpt2.py"), "--device", "cpu"]
    c = [os.path.join(ROOT, "train_gpt2"), "--sample-every", "0"]
    gpu = [options.gpu_trainer, "--sample-every", "0"]
    runs = {"ours_fp32": c + BATCH, "pytorch_fp32": twin + BATCH, "pytorch_fp32_halves": twin + HALVES,
            "pytorch_bf16": twin + BATCH + ["--precision", "bf16"], "ours_bf16": gpu + BATCH,
            "ours_fp8": gpu + BATCH + ["--fp8"], "ours_cpu_bf16": c + BATCH + ["--precision", "bf16"],
            "pytorch_autocast": twin + BATCH + ["--precision", "autocast"]}
    shown = options.near.curves if options.near else PYTORCH_RUNS
    shared = ["--train-data", options.text, *MODEL, *RECIPE, "--steps", str(options.steps), "--val-every",
              str(max(1, options.steps // 4)), "--val-sequences", "16"]
    return {name: runs[name] + shared for name in shown}


def is_complete(folder):
    path = os.path.join(folder, "out.txt")
    return os.path.exists(path) and re.search(r"^weights hash", read(path), re.M)


def read(path):
    with guard.open_file(path, "r", encoding="utf-8", errors="replace") as file:
        return file.read()


def train(name, command, folder):
    """One run, whose output also goes to a file. oneDNN believes a virtual machine that claims to have AMX."""
    environment = {"EMU_CHECK": "0", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ}
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    print(f"{name}: {' '.join(command)}", flush=True)
    with guard.open_file(os.path.join(folder, "out.txt"), "w", encoding="utf-8") as out:
        status = subprocess.run([*command, "--out-dir", folder], stdout=out, env=environment).returncode
    if status != 0:
        fail(f"{name} ended with status {status}; see {folder}/out.txt")


def losses(folder):
    """Of every step, to the six digits that the trainers print."""
    return [float(x) for x in re.findall(r"^step +\d+/\d+ \| loss ([0-9.]+)", read(f"{folder}/out.txt"), re.M)]


# ---- What the picture shows ----


def differences(runs):
    """Name -> |difference of the losses| at each step."""
    def apart(a, b):
        return [abs(x - y) for x, y in zip(runs[a], runs[b])]
    return {"bf16, PyTorch against its own fp32": apart("pytorch_bf16", "pytorch_fp32"),
            "bf16, train_gpt2cu against PyTorch": apart("ours_bf16", "pytorch_bf16"),
            "fp32, PyTorch against itself, batch in two halves": apart("pytorch_fp32_halves", "pytorch_fp32"),
            "fp32, train_gpt2 against PyTorch": apart("ours_fp32", "pytorch_fp32")}


def report(apart):
    """The largest difference of each pair, and how it grows."""
    print(f"\n{'difference of the losses':52}{'steps 1-10':>12}{'1-50':>12}{'1-100':>12}{'all':>12}  at step")
    for name, values in apart.items():
        worst = "".join(f"{max(values[:n]):12.6f}" for n in (10, 50, 100, len(values)))
        print(f"{name:52}{worst}  {values.index(max(values)) + 1}")


def draw_losses(axes, steps, runs):
    for name, label, style in (
            ("ours_fp32", "train_gpt2, fp32", {"color": "#9BD0F0", "linewidth": 6}),
            ("ours_bf16", "train_gpt2cu, bf16", {"color": "#F5B48A", "linewidth": 3}),
            ("pytorch_fp32", "PyTorch, fp32", {"color": "black", "linewidth": 1}),
            ("pytorch_bf16", "PyTorch, bf16", {"color": "white", "linewidth": 1, "linestyle": (0, (2, 3))})):
        axes.plot(steps, runs[name], label=label, **style)
    axes.set_ylabel("training loss")
    axes.legend(frameon=True, facecolor="#cccccc", edgecolor="none", title="one on the other")


class Near:
    """A picture of curves that should be near one of them, `base`. The run `judged` must end within `limit` of it."""

    def __init__(self, curves, colours, base, base_words, judged, limit):
        self.curves, self.colours, self.base, self.base_words = curves, colours, base, base_words
        self.judged, self.limit = judged, limit

    def apart(self, runs):
        """Name -> (loss - the base's) / the base's at each step."""
        return {name: [x / y - 1 for x, y in zip(runs[name], runs[self.base])]
                for name in self.curves if name != self.base}

    def report(self, apart):
        """The largest distance of each, its mean, and that of the last step."""
        print(f"\n{'from ' + self.base_words:26}{'largest':>10}{'at step':>9}{'mean':>11}{'last step':>11}")
        for name, values in apart.items():
            worst = max(values, key=abs)
            print(f"{self.curves[name][0]:26}{worst:+10.3%}{values.index(worst) + 1:9}"
                  f"{sum(values) / len(values):+11.4%}{values[-1]:+11.3%}")
        end = apart[self.judged][-1]
        if not abs(end) <= self.limit:
            fail(f"the loss of {self.curves[self.judged][0]} ends {end:+.2%} from {self.base_words}, expected within "
                 f"{self.limit:.1%}")

    def draw(self, top, bottom, runs, apart):
        steps = range(1, len(runs[self.base]) + 1)
        for name, (label, style) in self.curves.items():
            top.plot(steps, runs[name], label=label, **style)
        for name, values in apart.items():
            bottom.plot(steps, [100 * value for value in values], label=self.curves[name][0], linewidth=1.1,
                        color=self.colours[name])
        for sign in (-1, 1):
            bottom.axhline(100 * sign * self.limit, color="black", linewidth=0.8, linestyle=":")
        bottom.annotate(f"{100 * self.limit:g} % of the loss", (steps[-1], 100 * self.limit), (-4, -11),
                        textcoords="offset points", ha="right", fontsize=8)
        bottom.set_ylim(-120 * self.limit, 120 * self.limit)
        top.set_ylabel("training loss")
        bottom.set_ylabel(f"loss beside {self.base_words}, %")
        bottom.set_xlabel("step")
        top.legend(frameon=False, title="one on the other")
        bottom.legend(frameon=False, fontsize=8, ncol=3, loc="lower right")


FP8 = Near({"ours_fp32": ("train_gpt2, fp32", {"color": "#9BD0F0", "linewidth": 7}),
            "ours_bf16": ("train_gpt2cu, bf16", {"color": "#F5B48A", "linewidth": 4.5}),
            "ours_fp8": ("train_gpt2cu --fp8", {"color": GREEN, "linewidth": 2.2}),
            "pytorch_bf16": ("PyTorch, bf16", {"color": "black", "linewidth": 0.8})},
           {"ours_fp32": OURS, "ours_bf16": PYTORCH, "ours_fp8": GREEN},
           "pytorch_bf16", "PyTorch's in bf16", "ours_fp8", 0.01)
CPU = Near({"ours_fp32": ("train_gpt2, fp32", {"color": "#9BD0F0", "linewidth": 7}),
            "ours_cpu_bf16": ("train_gpt2 --precision bf16", {"color": "#F5B48A", "linewidth": 3.5}),
            "pytorch_autocast": ("PyTorch, autocast to bf16", {"color": "black", "linewidth": 0.8})},
           {"ours_cpu_bf16": PYTORCH, "pytorch_autocast": GRAY},
           "ours_fp32", "train_gpt2 in fp32", "ours_cpu_bf16", 0.003)
PYTORCH_RUNS = ("ours_fp32", "pytorch_fp32", "pytorch_fp32_halves", "pytorch_bf16", "ours_bf16")


def draw_differences(axes, steps, apart, loss):
    """In fp32 the losses differ by one of the six printed digits or not at all: dots."""
    styles = ({"color": GRAY, "linewidth": 0.8}, {"color": PYTORCH, "linewidth": 1.2},
              {"color": GREEN, "marker": "x", "markersize": 4, "linestyle": "none"},
              {"color": OURS, "marker": ".", "markersize": 6, "linestyle": "none"})
    for (name, values), style in zip(apart.items(), styles):
        axes.plot(steps, [max(value, NOT_APART) for value in values], label=name, **style)
    for epsilon, label in ((BF16_EPSILON, "bf16 rounds the loss by up to 2⁻⁹ of it"),
                           (FP32_EPSILON, "fp32 by up to 2⁻²⁴")):
        axes.plot(steps, [epsilon * value for value in loss], color="black", linewidth=0.8, linestyle=":")
        axes.annotate(label, (steps[-1], epsilon * loss[-1]), (-4, 5), textcoords="offset points", ha="right",
                      fontsize=8)
    axes.annotate("no difference in the six digits that are printed", (steps[-1], NOT_APART), (-4, 5),
                  textcoords="offset points", ha="right", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylim(1e-7, 5e-2)
    axes.set_ylabel("difference of the losses")
    axes.set_xlabel("step")
    axes.legend(frameon=False, fontsize=8, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def draw_pytorch(top, bottom, runs, apart):
    steps = range(1, len(next(iter(runs.values()))) + 1)
    draw_losses(top, steps, runs)
    draw_differences(bottom, steps, apart, runs["pytorch_fp32"])


def draw(picture, runs, apart, path):
    """picture: draw_pytorch, or the drawing of a Near."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, both = pyplot.subplots(2, 1, figsize=(8, 7.2), dpi=92, sharex=True, layout="constrained")
    picture(*both, runs, apart)
    for axes in both:
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.set_xlim(0, len(next(iter(runs.values()))) + 1)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with guard.new_file(path) as file:
        figure.savefig(file, format=os.path.splitext(path)[1][1:], pil_kwargs={"optimize": True})
    pyplot.close(figure)


def parse_options():
    parser = guard.Parser(textwrap.dedent(__doc__))
    parser.add_argument("--text", default=TEXT, help="what to learn (tinyshakespeare)")
    parser.add_argument("--fp8", action="store_const", dest="near", const=FP8, help="the picture of 8 bits")
    parser.add_argument("--cpu", action="store_const", dest="near", const=CPU, help="the picture of bf16 on the CPU")
    parser.add_argument("--steps", type=int, help="updates (200; --fp8: 500; --cpu: 300)")
    parser.add_argument("--runs", help="folder of the runs (run_twin_curves; run_twin_curves_fp8, _cpu)")
    parser.add_argument("--gpu-trainer", default=os.path.join(ROOT, "train_gpt2emu"), help="(./train_gpt2emu)")
    parser.add_argument("-o", "--output", help="the picture (curves_pytorch.png, curves_fp8.png, curves_cpu.png)")
    options = parser.parse_args()
    defaults = {None: (200, "run_twin_curves", "curves_pytorch.png"),
                FP8: (500, "run_twin_curves_fp8", "curves_fp8.png"),
                CPU: (300, "run_twin_curves_cpu", "curves_cpu.png")}[options.near]
    for name, value in zip(("steps", "runs", "output"), defaults):
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.steps < 1:
        fail(f"--steps: got {options.steps}, expected at least 1")
    for path, remedy in ((options.text, "python3 dev/data/tinyshakespeare.py, or give --text"),
                         (os.path.join(ROOT, "train_gpt2"), "make train_gpt2"),
                         (options.gpu_trainer, "make train_gpt2emu")):
        if path == options.gpu_trainer and options.near is CPU:
            continue
        if not os.path.exists(path):
            fail(f"{path}: no such file; {remedy}")
    return options


def main():
    options = parse_options()
    runs = {}
    for name, command in commands(options).items():
        folder = os.path.join(options.runs, name)
        if not is_complete(folder):
            train(name, command, folder)
        runs[name] = losses(folder)
        if len(runs[name]) != options.steps:
            fail(f"{folder}: {len(runs[name])} steps, expected {options.steps}; remove the folder")
    near = options.near
    compare, tell, picture = (near.apart, near.report, near.draw) if near else (differences, report, draw_pytorch)
    apart = compare(runs)
    tell(apart)
    try:
        draw(picture, runs, apart, options.output)
    except ImportError:
        fail("no matplotlib; apt-get install python3-matplotlib, or python3 -m pip install matplotlib")
    print(f"\nwrote {options.output}")


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped")
        sys.exit(130)
