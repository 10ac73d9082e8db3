"""Runs ./train_gpt2 as a user would, and makes the tiny files that its tests give it: standard library only.

The files are written from their description, not with the project's own code. TRAIN_GPT2 names another build.
"""
import array
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from operator import mul

from tools import LIMIT, WORK, new_folder, path, read, write  # noqa: F401 (tests take them from here)

PROGRAM = os.path.abspath(os.environ.get("TRAIN_GPT2", "./train_gpt2"))
FOLDER = WORK
# One thread unless --threads says otherwise: the tests run beside others, and threads cost more than they bring here.
ENVIRONMENT = dict(os.environ, OMP_WAIT_POLICY="passive", KMP_BLOCKTIME="0", OMP_NUM_THREADS="1", TERM="dumb")
# Where the memory of a process can be limited: not with a sanitizer, which reserves all there is, and not on macOS.
MEMORY_LIMITS = sys.platform == "linux" and b"__asan_init" not in open(PROGRAM, "rb").read()

MODEL = ["--layers", "1", "--heads", "2", "--channels", "16", "--context", "16"]  # a new model
BATCH = ["--seq-len", "16", "--batch-size", "2"]
TINY = MODEL + BATCH
QUIET = ["--val-every", "0", "--sample-every", "0"]


# ---- Running ----


def finish(process, status=0, show=""):
    """Waits for a process and returns its two outputs, a character a byte."""
    out, err = (text.decode("latin-1") for text in process.communicate(timeout=LIMIT))
    assert process.returncode == status, f"{show}\nstatus {process.returncode}, expected {status}\n{out}\n{err}"
    return out, err


def check_line(name, err, says=()):
    """What a trainer says on stderr before it ends with status 1: one line, which holds each text of `says` (a pattern
    where it is compiled)."""
    assert re.fullmatch(rf"{name}: [^\n]+\n", err), f"stderr is not one line: {err!r}"
    for text in says:
        found = text.search(err) if isinstance(text, re.Pattern) else str(text) in err
        assert found, f"{text!r} is not in {err!r}"


def evaluates(arguments):
    """Whether these are the options of a run of 0 steps."""
    words = [str(word) for word in arguments]
    return any(word in ("-x", "--steps") and value == "0" for word, value in zip(words, words[1:]))


class Trainer:
    """A trainer as a user runs it. A keyword in capitals is a variable of its environment."""

    def __init__(self, program, name, **environment):
        self.program, self.name, self.environment = program, name, dict(ENVIRONMENT, **environment)

    def start(self, *arguments, **keywords):
        variables = {name: keywords.pop(name) for name in list(keywords) if name.isupper()}
        return subprocess.Popen([self.program, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env={**self.environment, **variables}, **keywords)

    def ran(self, *arguments, **keywords):
        """What a run that must succeed prints; nothing on stderr. A run of 0 steps leaves stdout to its samples: it
        returns stderr, then the samples behind a line "sample:"."""
        out, err = finish(self.start(*arguments, **keywords), 0, arguments)
        if evaluates(arguments) and "--plan" not in arguments:
            assert f"{self.name}:" not in err, (arguments, err)
            return err + (f"sample:\n{out}" if out else "")
        assert err == "", (arguments, err)
        return out

    def refused(self, *arguments, says=(), out_says=(), no_files=None, **keywords):
        """A run that must end with status 1 and one line on stderr. no_files: a folder that must hold nothing
        afterwards but the lock. Returns the line."""
        out, err = finish(self.start(*arguments, **keywords), 1, arguments)
        if evaluates(arguments) and "\n" in err[:-1]:
            last = err.rindex("\n", 0, -1) + 1
            out, err = out + err[:last], err[last:]
        check_line(self.name, err, says)
        for text in out_says:
            assert text in out, f"{arguments}: {text!r} is not in {out!r}"
        if no_files is not None and os.path.isdir(no_files):
            assert set(os.listdir(no_files)) <= {".lock"}, os.listdir(no_files)
        return err


CPU = Trainer(PROGRAM, "train_gpt2")
start, ran, refused = CPU.start, CPU.ran, CPU.refused


def of_llama(trainer):
    """The trainer for Llama that is built beside one for GPT-2."""
    program, name = (text.replace("train_gpt2", "train_llama3") for text in (trainer.program, trainer.name))
    return Trainer(program, name, **trainer.environment)


LLAMA = of_llama(CPU)


def weights_hash(out):
    return re.search(r"^weights hash ([0-9a-f]{16})$", out, re.M).group(1)


def losses(out):
    """The training losses printed, in order."""
    return [float(loss) for loss in re.findall(r"^step +\d+/\d+ \| loss ([\d.]+|-?nan|-?inf)", out, re.M)]


def val_losses(out):
    line = r"^(?:evaluation|step +\d+/\d+) \| val loss ([\d.]+|-?nan|-?inf) \(\d+ of \d+ sequences\)"
    return [float(loss) for loss in re.findall(line, out, re.M)]


def steps_of(out):
    return [int(step) for step in re.findall(r"^step +(\d+)/\d+ \| loss", out, re.M)]


def norms(out):
    return [float(norm) for norm in re.findall(r"^step .*\| norm ([\d.]+)", out, re.M)]


def logged_steps(folder):
    """The steps whose updates main.log holds, in order."""
    return [int(step) for step in re.findall(r"^s:(\d+) trl:", log_of(folder), re.M)]


def log_of(folder):
    """main.log as its readers take it: of two lines of a kind for a step, the later one."""
    lines = read(os.path.join(folder, "main.log")).decode().splitlines(True)
    return "".join({line[:line.find(":", 2)]: line for line in lines}.values())


def check_memory_sum(out):
    """What the lines of the memory print adds up to their total, but for the rounding of each number."""
    total, parts = re.search(r"^memory +([\d.]+) \w+(?: on the GPU)?, planned\n +(= .*)$", out, re.M).groups()
    terms = re.findall(r"([=+-]) ([\d.]+) ([a-z]+)", parts)
    assert " ".join(map(" ".join, terms)) == parts and len({name for *_, name in terms}) == len(terms) >= 3, parts
    added = sum(-float(number) if sign == "-" else float(number) for sign, number, _ in terms)
    assert abs(added - float(total)) <= 0.005 * (len(terms) + 1) + 1e-9, (total, parts)


def planned_bytes(out):
    """What --plan all says that the GPU takes in all."""
    return int(re.search(r"On the GPU\n.*?total +(\d+) bytes", out, re.S).group(1))


def sample_of(out):
    """The text of the last sample of a run of 0 steps, without the newline that ends it."""
    return re.search(r"sample(?: after \d+ steps)?:\n(.*?)\n\Z", out, re.S).group(1)


def logged_losses(folder):
    return [float(loss) for loss in re.findall(r"^s:\d+ trl:([\d.]+)", log_of(folder), re.M)]


def checkpoints(folder):
    return sorted(int(name[6:14]) for name in os.listdir(folder) if re.fullmatch(r"state_\d{8}\.bin", name))


def stopped_after(step, source, name="stopped"):
    """A folder like one whose run has just been stopped after so many steps: of a run that went on."""
    folder = new_folder(name)
    os.mkdir(folder)
    for file in os.listdir(source):
        found = re.fullmatch(r"(?:model|state)_(\d{8})\.bin", file)
        if found is None or int(found[1]) <= step:
            shutil.copy(os.path.join(source, file), folder)
    return folder


# ---- Files ----


def shard_bytes(tokens, count=None):
    header = struct.pack("<256i", 20240520, 1, len(tokens) if count is None else count, *[0] * 253)
    return header + array.array("H", tokens).tobytes()


def shard(name, tokens):
    return write(name, shard_bytes(tokens))


def random_tokens(count, vocab, seed=1):
    generator = random.Random(seed)
    return [generator.randrange(vocab) for _ in range(count)]


def text_file(name="text.txt", size=4000):
    """A text of words from a small vocabulary, that a model can learn something of."""
    generator = random.Random(7)
    words = ["the", "a", "cat", "dog", "sees", "likes", "and", "runs", "far", "away.\n"]
    text = " ".join(generator.choice(words) for _ in range(size))
    return write(name, text[:size].encode())


CONFIG = {"maxT": 16, "V": 257, "L": 1, "NH": 2, "C": 16, "Vp": 384}


def config(**changes):
    return dict(CONFIG, **changes)


def tensor_shapes(c):
    """The 16 tensors of a model file, in order: name -> shape."""
    L, C = c["L"], c["C"]
    return {"wte": (c["Vp"], C), "wpe": (c["maxT"], C), "ln1w": (L, C), "ln1b": (L, C), "qkvw": (L, 3 * C, C),
            "qkvb": (L, 3 * C), "attprojw": (L, C, C), "attprojb": (L, C), "ln2w": (L, C), "ln2b": (L, C),
            "fcw": (L, 4 * C, C), "fcb": (L, 4 * C), "fcprojw": (L, C, 4 * C), "fcprojb": (L, C), "lnfw": (C, ),
            "lnfb": (C, )}


def make_params(c, seed=3, deviation=0.1):
    """Random parameters that a bfloat16 holds exactly: name -> array of float32. Padding rows are zero."""
    generator = random.Random(seed)
    params = {}
    for name, shape in tensor_shapes(c).items():
        n = math.prod(shape)
        used = c["V"] * c["C"] if name == "wte" else n
        mean = 1.0 if name in ("ln1w", "ln2w", "lnfw") else 0.0
        values = array.array("f", [generator.gauss(mean, deviation) for _ in range(used)] + [0.0] * (n - used))
        bits = array.array("I", values.tobytes())
        params[name] = array.array("f", array.array("I", [b & 0xffff0000 for b in bits]).tobytes())
    return params


def model_header(c, version=3):
    fields = [20240326, version, c["maxT"], c["V"], c["L"], c["NH"], c["C"], c["Vp"]]
    return struct.pack("<256i", *fields, *[0] * 248)


def model_bytes(c, params, version=3):
    body = b"".join(values.tobytes() for values in params.values())
    if version == 5:
        body = array.array("H", [b >> 16 for b in array.array("I", body)]).tobytes()
    return model_header(c, version) + body


def model(name, c=None, params=None, version=3):
    c = c or CONFIG
    return write(name, model_bytes(c, params or make_params(c), version))


def tokenizer_bytes(tokens, count=None):
    """The last token is that of the end of a text."""
    header = struct.pack("<256I", 20240328, 2, count or len(tokens), len(tokens) - 1, *[0] * 252)
    return header + b"".join(bytes([len(token)]) + token for token in tokens)


# ---- The model, written down once more ----


def reference_losses(c, params, tokens, targets):
    """The cross-entropy of each target of one sequence, computed number by number in double precision."""
    C, HS = c["C"], c["C"] // c["NH"]

    def rows(values, width):
        return [values[i:i + width] for i in range(0, len(values), width)]

    def part(name, shape, layer):
        """What a layer has of a tensor: a vector, or the rows of a matrix."""
        n = math.prod(shape)
        values = params[name][layer * n:(layer + 1) * n]
        return rows(values, shape[1]) if len(shape) == 2 else values

    def norm(x, w, b):
        mean = sum(x) / C
        rstd = 1.0 / math.sqrt(sum((v - mean)**2 for v in x) / C + 1e-5)
        return [(v - mean) * rstd * g + s for v, g, s in zip(x, w, b)]

    def linear(x, w, b):
        return [sum(map(mul, x, row)) + s for row, s in zip(w, b)]

    def add(x, y):
        return [a + b for a, b in zip(x, y)]

    def gelu(v):
        return 0.5 * v * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v**3)))

    def attention(q, keys, values):
        scores = [sum(map(mul, q, k)) / math.sqrt(HS) for k in keys]
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        total = sum(weights)
        return [sum(map(mul, weights, column)) / total for column in zip(*values)]

    wte, wpe = rows(params["wte"], C)[:c["V"]], rows(params["wpe"], C)
    x = [add(wte[token], wpe[t]) for t, token in enumerate(tokens)]
    for layer in range(c["L"]):
        p = {name: part(name, shape[1:], layer) for name, shape in tensor_shapes(c).items() if shape[0] == c["L"]}
        qkv = [linear(norm(row, p["ln1w"], p["ln1b"]), p["qkvw"], p["qkvb"]) for row in x]
        for t, row in enumerate(x):
            heads = []
            for at in range(0, C, HS):
                keys, values = ([past[i + at:i + at + HS] for past in qkv[:t + 1]] for i in (C, 2 * C))
                heads += attention(qkv[t][at:at + HS], keys, values)
            row = add(row, linear(heads, p["attprojw"], p["attprojb"]))
            hidden = map(gelu, linear(norm(row, p["ln2w"], p["ln2b"]), p["fcw"], p["fcb"]))
            x[t] = add(row, linear(list(hidden), p["fcprojw"], p["fcprojb"]))
    losses = []
    for row, target in zip(x, targets):
        logits = linear(norm(row, params["lnfw"], params["lnfb"]), wte, [0.0] * c["V"])
        top = max(logits)
        losses.append(top + math.log(sum(math.exp(v - top) for v in logits)) - logits[target])
    return losses
