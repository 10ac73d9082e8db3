#!/usr/bin/env python3
"""Computes what the head comments of scripts/run_gpt*.sh say of tokens, FLOPs, hours and memory, from the settings of
each script and the trainer's --plan. No GPU is needed.

    python3 dev/recipe_table.py --check [program]      exit status 1 if a comment is not what --plan says now
    python3 dev/recipe_table.py --write [program]      brings the comments up to date

program: ./train_gpt2cu or ./train_gpt2emu (the default).
"""
import argparse
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Name, dense bf16 peak in TFLOP/s, GB/s that each of 8 GPUs of a machine sends (nccl-tests' busbw), MiB that are free.
GPUS = [("A100 80 GB", 312, 230, 80000), ("H100 80 GB", 989, 400, 80000)]
COUNTS = [1, 8]
FIRST = "# Computed by dev/recipe_table.py --write:"
LAST = "# In this, computing alone reaches half"
# What a script has settled, and the micro-batch that it takes on so many GPUs with so much memory.
SETTINGS = r"""
RECIPE_ONLY=yes PROGRAM=$2
. "$1"
settle
num_gpus=$3 gpu_mib=$4 gpu_name=GPU
choose_batch >&2
echo "$batch ${SIZE[1]} $SEQ_LEN $TOTAL_BATCH $STEPS $ZERO_STAGE $recompute"
"""


class Problem(Exception):
    """One line for a person."""


def output(*command):
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    result = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise Problem(f"{command[0]}: status {result.returncode}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


def settings(script, program, gpus, mib):
    words = output("bash", "-c", SETTINGS, "recipe", script, program, gpus, mib).split()
    names = ["batch", "model", "seq_len", "total_batch", "steps", "zero_stage", "recompute"]
    return {name: word if name == "model" else int(word) for name, word in zip(names, words)}


def plan(program, recipe, gpus, tflops, link):
    """Bytes of GPU memory and seconds of a step."""
    words = ["--plan", "-e", recipe["model"], "-np", gpus, "-b", recipe["batch"], "-t", recipe["seq_len"],
             "-d", recipe["total_batch"], "-r", recipe["recompute"], "-z", recipe["zero_stage"],
             "--gpu-tflops", tflops, "--link-speed", link]
    table = output(program, *words).split("--zero-stage", 1)[1]
    row = re.search(rf"^{recipe['zero_stage']} +(\d+) .*?([\d.]+) s +[\d.]+%$", table, re.M)
    return int(row.group(1)), float(row.group(2))


def flops_of_a_step(program, recipe):
    """At a peak of 0.01 TFLOP/s, half of which computing reaches, a step takes long enough to be shown exactly."""
    return plan(program, recipe, 1, 0.01, 400)[1] * 0.01e12 / 2


def duration(hours):
    return f"{hours:.1f} hours" if hours < 100 else f"{hours / 24:.0f} days"


def comment(script, program):
    """The computed lines of a script's head comment."""
    columns = [(f"{gpus} x {name}", gpus, tflops, link, mib) for name, tflops, link, mib in GPUS for gpus in COUNTS]
    rows = {"time": [], "sequences at once": [], "memory of each": []}
    for _, gpus, tflops, link, mib in columns:
        recipe = settings(script, program, gpus, mib)
        memory, step = plan(program, recipe, gpus, tflops, link)
        rows["time"].append(duration(step * recipe["steps"] / 3600))
        rows["sequences at once"].append(str(recipe["batch"]))
        rows["memory of each"].append(f"{memory / 2**30:.1f} GiB")
    tokens = recipe["steps"] * recipe["total_batch"]
    flops = flops_of_a_step(program, recipe) * recipe["steps"]
    lines = [FIRST, "#",
             f"#   {tokens / 1e9:.1f} billion tokens: {recipe['steps']:,} steps of {recipe['total_batch']:,};"
             f" {flops:.1e} FLOPs", "#",
             "#   " + " " * 18 + "".join(f"{column[0]:>17}" for column in columns)]
    lines += [f"#   {name:18}" + "".join(f"{value:>17}" for value in values) for name, values in rows.items()]
    peaks = " and ".join(f"{tflops}" for _, tflops, _, _ in GPUS)
    links = " and ".join(f"{link}" for _, _, link, _ in GPUS)
    return lines + ["#", f"{LAST} of the bf16 peak ({peaks} TFLOP/s), and a GPU sends {links} GB/s:",
                    "# planned, not measured. Validation, HellaSwag and saving come on top."]


def updated(script, program):
    """The text of the script as it is, and as it should be."""
    with open(os.path.join(ROOT, script), encoding="utf-8") as file:
        text = file.read()
    lines = text.split("\n")
    firsts = [i for i, line in enumerate(lines) if line == FIRST]
    lasts = [i + 1 for i, line in enumerate(lines) if line.startswith(LAST)]
    if len(firsts) != 1 or len(lasts) != 1 or lasts[0] < firsts[0]:
        raise Problem(f"{script}: expected one line '{FIRST}' and, below it, one that begins with '{LAST}'")
    return text, "\n".join(lines[:firsts[0]] + comment(script, program) + lines[lasts[0] + 1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare")
    action.add_argument("--write", action="store_true", help="bring up to date")
    parser.add_argument("program", nargs="?", default="./train_gpt2emu", help="the trainer (default ./train_gpt2emu)")
    options = parser.parse_args()
    if not os.access(os.path.join(ROOT, options.program), os.X_OK):
        raise Problem(f"{options.program}: no such program; make train_gpt2emu builds one")
    old = []
    for path in sorted(glob.glob(os.path.join(ROOT, "scripts", "run_gpt*.sh"))):
        script = os.path.relpath(path, ROOT)
        before, after = updated(script, options.program)
        if before != after:
            old.append(script)
            if options.write:
                with open(os.path.join(ROOT, script), "w", encoding="utf-8") as file:
                    file.write(after)
    if options.check and old:
        raise Problem(f"{', '.join(old)}: the head comment is not what --plan says now; --write brings it up to date")
    print(f"{'written' if options.write and old else 'up to date'}: {', '.join(old) or 'scripts/run_gpt*.sh'}")


if __name__ == "__main__":
    try:
        main()
    except (Problem, OSError) as problem:
        sys.exit(f"recipe_table.py: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
