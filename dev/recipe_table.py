#!/usr/bin/env python3
"""Computes what the head comments of scripts/run_gpt*.sh, and the table in doc/reproduce.md, say of tokens, FLOPs,
hours and memory, from the settings of each script and the trainer's --plan. No GPU is needed.

    python3 dev/recipe_table.py --check [program]      exit status 1 if they are not what --plan says now
    python3 dev/recipe_table.py --write [program]      brings them up to date

program: ./train_gpt2cu or ./train_gpt2emu (the default).
"""
import argparse
import functools
import glob
import os
import re
import subprocess
import sys

import guard

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Name, what --gpu calls it, MiB that are free.
GPUS = [("A100 80 GB", "a100", 80000), ("H100 80 GB", "h100", 80000)]
COUNTS = [1, 8]
DOCUMENT = "doc/reproduce.md"
FIRST = "# Computed by dev/recipe_table.py --write:"
LAST = "# Times are predicted kernel by kernel"
# What a script has settled, and the micro-batch that it takes on so many GPUs with so much memory.
SETTINGS = r"""
recipe_only=yes PROGRAM=$2
. "$1"
settle
num_gpus=$3 gpu_mib=$4 gpu_name=GPU
choose_batch >&2
echo "$batch ${SIZE[1]} $SEQ_LEN $TOTAL_BATCH $STEPS $ZERO_STAGE $recompute"
"""


class Problem(Exception):
    """One line for a person."""


@functools.lru_cache(None)
def output(*command):
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    environment["EMU_CUDNN"] = "1"  # the emulated program plans with cuDNN, as a build for a GPU does
    result = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise Problem(f"{command[0]}: status {result.returncode}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


def settings(script, program, gpus, mib):
    words = output("bash", "-c", SETTINGS, "recipe", script, program, gpus, mib).split()
    names = ["batch", "model", "seq_len", "total_batch", "steps", "zero_stage", "recompute"]
    return {name: word if name == "model" else int(word) for name, word in zip(names, words)}


def plan(program, recipe, gpus, gpu):
    """Bytes of GPU memory, seconds of a step, and its FLOPs on all GPUs."""
    words = ["--plan", "all", "-e", recipe["model"], "-np", gpus, "-b", recipe["batch"], "-t", recipe["seq_len"],
             "-d", recipe["total_batch"], "-r", recipe["recompute"], "-z", recipe["zero_stage"], "--gpu", gpu]
    out = output(program, *words)
    memory = re.search(r"^On the GPU\n.*?^total (\d+) bytes", out, re.M | re.S)
    step = re.search(r"^ +([\d.]+) .* the step$", out, re.M)
    flops = re.search(r" a step of ([\d.e+]+) FLOPs on each GPU", out, re.M)
    return int(memory[1]), 1e-3 * float(step[1]), gpus * float(flops[1])


def duration(hours):
    return f"{hours:.1f} hours" if hours < 100 else f"{hours / 24:.0f} days"


def comment(script, program):
    """The computed lines of a script's head comment."""
    columns = [(f"{gpus} x {name}", gpus, gpu, mib) for name, gpu, mib in GPUS for gpus in COUNTS]
    rows = {"time": [], "sequences at once": [], "memory of each": []}
    for _, gpus, gpu, mib in columns:
        recipe = settings(script, program, gpus, mib)
        memory, step, flops = plan(program, recipe, gpus, gpu)
        rows["time"].append(duration(step * recipe["steps"] / 3600))
        rows["sequences at once"].append(str(recipe["batch"]))
        rows["memory of each"].append(f"{memory / 2**30:.1f} GiB")
    tokens = recipe["steps"] * recipe["total_batch"]
    lines = [FIRST, "#",
             f"#   {tokens / 1e9:.1f} billion tokens: {recipe['steps']:,} steps of {recipe['total_batch']:,};"
             f" {flops * recipe['steps']:.1e} FLOPs", "#",
             "#   " + " " * 18 + "".join(f"{column[0]:>17}" for column in columns)]
    lines += [f"#   {name:18}" + "".join(f"{value:>17}" for value in values) for name, values in rows.items()]
    return lines + ["#", f"{LAST} by --plan --gpu a100 and h100, none is measured. Validation, HellaSwag and",
                    "# saving come on top."]


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def updated(script, program):
    """The text of the script as it should be."""
    lines = read(script).split("\n")
    firsts = [i for i, line in enumerate(lines) if line == FIRST]
    lasts = [i + 1 for i, line in enumerate(lines) if line.startswith(LAST)]
    if len(firsts) != 1 or len(lasts) != 1 or lasts[0] < firsts[0]:
        raise Problem(f"{script}: expected one line '{FIRST}' and, below it, one that begins with '{LAST}'")
    return "\n".join(lines[:firsts[0]] + comment(script, program) + lines[lasts[0] + 1:])


def updated_document(scripts):
    """The document as it should be: the last three cells of each script's row are those of 8 GPUs."""
    def row(match):
        text = scripts[f"scripts/{match[2]}"]
        times = re.findall(r"[\d.]+ \w+", re.search(r"^#   time +(.*)$", text, re.M)[1])
        memory = re.findall(r"[\d.]+ GiB", re.search(r"^#   memory of each +(.*)$", text, re.M)[1])
        return f"{match[1]} {times[1]} | {times[3]} | {memory[3]} |"
    pattern = r"^(\| `(run_gpt\w+\.sh)` \|(?:[^|\n]*\|){3})(?:[^|\n]*\|){3}$"
    return re.sub(pattern, row, read(DOCUMENT), flags=re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare")
    action.add_argument("--write", action="store_true", help="bring up to date")
    parser.add_argument("program", nargs="?", default="./train_gpt2emu", help="the trainer (default ./train_gpt2emu)")
    options = parser.parse_args()
    if not os.access(os.path.join(ROOT, options.program), os.X_OK):
        raise Problem(f"{options.program}: no such program; make train_gpt2emu builds one")
    paths = sorted(glob.glob(os.path.join(ROOT, "scripts", "run_gpt*.sh")))
    texts = {script: updated(script, options.program) for script in (os.path.relpath(path, ROOT) for path in paths)}
    texts[DOCUMENT] = updated_document(texts)
    old = [name for name, text in texts.items() if text != read(name)]
    for name in old if options.write else []:
        path = os.path.join(ROOT, name)
        with guard.new_file(path, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), os.stat(path).st_mode & 0o777)  # a script stays one
            file.write(texts[name])
    if options.check and old:
        raise Problem(f"{', '.join(old)}: not what --plan says now; --write brings it up to date")
    print("written:" if old else "up to date:", ", ".join(old or texts))


if __name__ == "__main__":
    try:
        main()
    except (Problem, OSError) as problem:
        sys.exit(f"recipe_table.py: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
