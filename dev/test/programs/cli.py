"""Runs ./train_gpt2 as a user would, and makes the tiny files that its tests give it.

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

import numpy as np

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

    def __init__(self, program, **environment):
        self.program, self.name = program, os.path.basename(program)  # what it calls itself, too
        self.environment = dict(ENVIRONMENT, **environment)

    def start(self, *arguments, **keywords):
        variables = {name: keywords.pop(name) for name in list(keywords) if name.isupper()}
        keywords.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([self.program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**self.environment, **variables}, **keywords)

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


CPU = Trainer(PROGRAM)
start, ran, refused = CPU.start, CPU.ran, CPU.refused


def of_llama(trainer):
    """The trainer for Llama that is built beside one for GPT-2."""
    return Trainer(trainer.program.replace("train_gpt2", "train_llama3"), **trainer.environment)


LLAMA = of_llama(CPU)


def weights_hash(out):
    return re.search(r"^weights hash ([0-9a-f]{16})$", out, re.M).group(1)


def numbers(pattern, kind=float):
    """What reads such numbers from the lines that a run prints, in order."""
    return lambda out: [kind(number) for number in re.findall(pattern, out, re.M)]


losses = numbers(r"^step +\d+/\d+ \| loss ([\d.]+|-?nan|-?inf)")
val_losses = numbers(r"^(?:evaluation|step +\d+/\d+) \| val loss ([\d.]+|-?nan|-?inf) \(\d+ of \d+ sequences\)")
steps_of = numbers(r"^step +(\d+)/\d+ \| loss", int)
norms = numbers(r"^step .*\| norm ([\d.]+)")


def logged_steps(folder):
    """The steps whose updates main.log holds, in order."""
    return numbers(r"^s:(\d+) trl:", int)(log_of(folder))


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
    return numbers(r"^s:\d+ trl:([\d.]+)")(log_of(folder))


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
    """Random parameters that a bfloat16 holds exactly: name -> floats. Padding rows are zero."""
    generator = random.Random(seed)
    params = {}
    for name, shape in tensor_shapes(c).items():
        values = np.zeros(math.prod(shape), "f")
        used = c["V"] * c["C"] if name == "wte" else len(values)
        mean = 1.0 if name in ("ln1w", "ln2w", "lnfw") else 0.0
        values[:used] = [generator.gauss(mean, deviation) for _ in range(used)]
        params[name] = (values.view("u4") & 0xffff0000).view("f")
    return params


def model_header(c, version=3):
    fields = [20240326, version, c["maxT"], c["V"], c["L"], c["NH"], c["C"], c["Vp"]]
    return struct.pack("<256i", *fields, *[0] * 248)


def model_bytes(c, params, version=3):
    body = b"".join(values.tobytes() for values in params.values())
    if version == 5:
        body = (np.frombuffer(body, "u4") >> 16).astype("u2").tobytes()
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
    """The cross-entropy of each target of one sequence, in double precision."""
    C, NH, T = c["C"], c["NH"], len(tokens)
    p = {name: params[name].reshape(shape).astype("d") for name, shape in tensor_shapes(c).items()}

    def norm(x, w, b):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w + b

    def gelu(x):
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))

    def softmax(x):
        weights = np.exp(x - x.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    x = p["wte"][list(tokens)] + p["wpe"][:T]
    future = np.triu(np.full((T, T), -np.inf), 1)
    for i in range(c["L"]):
        qkv = norm(x, p["ln1w"][i], p["ln1b"][i]) @ p["qkvw"][i].T + p["qkvb"][i]
        q, k, v = qkv.reshape(T, 3, NH, C // NH).transpose(1, 2, 0, 3)  # each (NH, T, HS)
        heads = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(C // NH) + future) @ v
        x = x + heads.transpose(1, 0, 2).reshape(T, C) @ p["attprojw"][i].T + p["attprojb"][i]
        hidden = gelu(norm(x, p["ln2w"][i], p["ln2b"][i]) @ p["fcw"][i].T + p["fcb"][i])
        x = x + hidden @ p["fcprojw"][i].T + p["fcprojb"][i]
    logits = norm(x, p["lnfw"], p["lnfb"]) @ p["wte"][:c["V"]].T
    top = logits.max(-1)
    losses = top + np.log(np.exp(logits - top[:, None]).sum(-1)) - logits[np.arange(T), list(targets)]
    return losses.tolist()
