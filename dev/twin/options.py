"""The command line of train_gpt2.py, and the rates that follow from it. Names, ranges and defaults are those of the C
trainers (llmc/run/train_options.h), whose options it takes in part."""
import argparse
import contextlib
import math

from dev import guard
from dev.twin import Problem

SUMMARY = "The PyTorch twin of ./train_gpt2 and ./train_gpt2cu: the same model, initial weights, batches and optimizer."
ON_GPU = {"init": "d12", "val_every": 250, "precision": "bf16", "compile": 1}  # defaults of a run on a GPU, and where
ON_CPU = {"init": "d6", "val_every": 100, "precision": "fp32", "compile": 0}   # those on a CPU differ
MANY = 1000000000  # steps, sequences: more than any run has

# Each --schedule's way from the peak (1) to the final rate (0), after a part x of the decay.
SHAPES = {"cosine": lambda x: 0.5 * (1 + math.cos(math.pi * x)), "linear": lambda x: 1 - x, "constant": lambda x: 1,
          "wsd": lambda x: 1 - math.sqrt(x)}
PARTS = {"wsd": 5}  # the rate falls in the last fifth of the steps, elsewhere from the warm-up on


def number(kind, low, high):
    """A type of argparse: a number in a range."""
    def parse_number(text):
        with contextlib.suppress(ValueError):
            if low <= kind(text) <= high:
                return kind(text)
        raise argparse.ArgumentTypeError(
            f"got '{text}', expected a {'whole ' * (kind is int)}number from {low:.12g} to {high:.12g}")
    return parse_number


def make_parser():
    parser = guard.Parser(SUMMARY, prog="train_gpt2.py")

    def add(*names, help, default=0, **more):
        shown = f" (default {default})" if default not in (None, "", 0, -1) else ""
        parser.add_argument(*names, default=default, help=help + shown, **more)

    def whole(*names, help, low=0, high=MANY, default=0):
        add(*names, help=help, type=number(int, low, high), metavar="N", default=default)

    def real(*names, help, high, low=0, default=0):
        add(*names, help=help, type=number(float, low, high), metavar="F", default=default)

    def flag(*names, help, default=0):
        add(*names, help=help, type=int, choices=(0, 1), nargs="?", const=1, default=default)

    add("-i", "--train-data", metavar="FILES", default="", help="a text, or token shards (.bin); also a quoted pattern")
    add("-j", "--val-data", metavar="FILES", default="", help="validation data; without it, the last tenth of a text")
    flag("--shuffle", help="visit shards and their windows in a random order")
    add("-e", "--init", metavar="MODEL", default=None, help="a new model's size, or a model's .bin (default d6, d12)")
    whole("--layers", high=1000, help="of a new model; 0: as --init says")
    whole("--heads", high=1024, help="of a new model; 0: as --init says")
    whole("--channels", high=65536, help="of a new model; 0: as --init says")
    whole("--context", high=1 << 20, help="positions that a new model knows; 0: --seq-len")
    whole("--vocab", high=1 << 20, help="of a new model; 0: 257 for a text, 50257 for shards")
    whole("-b", "--batch-size", low=1, high=65535, default=4, help="sequences in a micro-batch")
    whole("-t", "--seq-len", high=1 << 20, help="tokens in a sequence; 0: 64 (1024), or the context if that is less")
    whole("-d", "--total-batch", high=2**31 - 1, help="tokens in a step; 0: a micro-batch of each process")
    whole("-x", "--steps", low=-1, default=-1, help="-1: once through the data; 0: only validate")
    real("-l", "--lr", high=100, default=3e-4, help="the highest learning rate")
    add("-k", "--schedule", choices=list(SHAPES), default="cosine", help="how the rate falls")
    whole("-u", "--warmup", low=-1, default=-1, help="steps; -1: for a new model a tenth of all, at most 100, else 0")
    real("-q", "--final-lr-frac", high=1, default=0.1, help="the last rate as a fraction of the highest")
    add("--optimizer", choices=("adamw", "muon"), default="adamw", help="of the matrices of the blocks")
    real("--muon-lr", high=100, help="0: 0.02, or --lr with --muon-scale rms")
    whole("--muon-warmup", default=300, help="steps over which the momentum rises to 0.95")
    add("--muon-scale", choices=("original", "rms"), default="original", help="of the updates")
    real("-c", "--weight-decay", high=100, help="of matrices and embeddings")
    real("--adam-eps", low=1e-20, high=1, default=1e-8, help="AdamW's epsilon")
    real("--grad-clip", high=1e9, default=1, help="shorten gradients to this norm; 0: never")
    whole("-v", "--val-every", default=None, help="steps between validations; 0: none (default 100, 250)")
    whole("--val-sequences", default=80, help="in a validation; 0: all")
    add("-o", "--out-dir", metavar="DIR", default="", help="for main.log, speed.log, run.jsonl and the model's .bin")
    whole("--seed", high=2**32 - 1, default=42, help="of the initial weights and the order of the data")
    flag("-f", "--tf32", default=1, help="let fp32 matrix multiplies on a GPU use TF32")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where PyTorch sees a GPU")
    add("--precision", choices=("fp32", "bf16", "autocast"), default=None, help="bf16 (the default on a GPU): as "
        "train_gpt2cu, all activations in bf16; autocast: only matrix multiplies, PyTorch's usual way")
    flag("--compile", default=None, help="torch.compile forward and backward (default 0, on a GPU 1)")
    return parser


def parse(arguments, sees_gpu):
    """The options of a command line: an object with a field for each. sees_gpu: PyTorch can compute on a GPU."""
    parser = make_parser()
    defaults = vars(parser.parse_args([]))
    o = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(defaults)))
    given = {name for name, value in vars(o).items() if value is not None}
    if o.device == "cuda" and not sees_gpu:
        raise Problem("--device cuda: PyTorch sees no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES")
    o.device = "cuda" if sees_gpu and o.device != "cpu" else "cpu"
    for name, value in {**defaults, **(ON_GPU if o.device == "cuda" else ON_CPU)}.items():
        setattr(o, name, value if getattr(o, name) is None else getattr(o, name))
    muon = sorted(name for name in given if name.startswith("muon"))
    for bad, message in (
            (not o.train_data and o.steps, "--train-data (-i): missing; give a text file or token shards"),
            (not o.train_data and not o.val_data, "--val-data (-j): missing; a run of 0 steps only validates"),
            (o.schedule == "constant" and "final_lr_frac" in given, "--final-lr-frac: needs no --schedule constant"),
            (muon and o.optimizer != "muon", f"--{''.join(muon[:1]).replace('_', '-')}: needs --optimizer muon"),
            ("tf32" in given and o.device == "cpu", "--tf32 (-f): is an option of a run on a GPU")):
        if bad:
            raise Problem(message)
    if o.schedule == "constant":
        o.final_lr_frac = 1.0
    if o.optimizer == "muon" and o.muon_lr == 0:
        o.muon_lr = o.lr if o.muon_scale == "rms" else 0.02
    return o


def record(o):
    """Every option by its long name, as the text that run.jsonl has of it."""
    return {name.replace("_", "-"): value if isinstance(value, str) else f"{value:.17g}" if value == int(value) else
            repr(value) for name, value in vars(o).items()}


# ---- Rates ----


def learning_rate(step, peak, warmup, total, final_fraction, schedule):
    """Linear warm-up to peak, then down to peak * final_fraction at step total (llmc/run/schedulers.h)."""
    if step < warmup:
        return peak * ((step + 1) / warmup)
    start = max(warmup, total - -(-total // PARTS.get(schedule, 1)))
    x = 1.0 if step >= total else max(step - start, 0) / (total - start)
    return peak * (final_fraction + (1 - final_fraction) * SHAPES[schedule](x))


def muon_scale(kind, rows, cols):
    """The factor of Muon's update of a matrix (rows, cols) (llmc/model/muon.h)."""
    return 0.2 * math.sqrt(max(rows, cols)) if kind == "rms" else math.sqrt(max(1, rows / cols))


def muon_momentum(step, warmup, last=0.95):
    """It rises in a straight line over `warmup` steps."""
    first = min(last, 0.85)
    return last if step >= warmup else first + (last - first) * step / warmup
