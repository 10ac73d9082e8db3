#!/usr/bin/env python3
"""Compares the weights after many short runs of the trainers with a recorded table, so that moving code cannot change
a bit.

    python3 dev/weights_hashes.py --check [--only PATTERN]    prints each row that differs, and exits with status 1
    python3 dev/weights_hashes.py --list [--only PATTERN]     prints the rows and their options
    python3 dev/weights_hashes.py --write                     runs all rows and writes their hashes and losses

The table is dev/test/fixtures/weights_hashes.txt. Its head says how to write a row; a new row has "-" for hash and
loss. The program builds the trainers with make: the CPU trainer, and the GPU trainer in the emulator in bf16 and in
fp32. No GPU is needed. Another compiler or processor may round differently. Then go to the revision before the change,
run --write, go back to the change with this table, and run --check.
"""
import argparse
import concurrent.futures
import glob
import os
import platform
import re
import struct
import subprocess
import sys
import tempfile

import guard

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "dev", "test", "fixtures", "weights_hashes.txt")
MADE_WITH = "# made with: "
TIMEOUT = 300  # seconds for one run
FP32 = "build/emu_fp32"
# The first word of a row's name -> the words for make. The last word is the program.
PROGRAMS = {"cpu": ["train_gpt2"], "bf16": ["train_gpt2emu"],
            "fp32": ["PRECISION=FP32", f"BUILD={FP32}", f"BIN={FP32}", f"{FP32}/train_gpt2emu"]}
VOCAB = 61
NEW_MODEL = f"--layers 2 --heads 2 --channels 32 --context 16 --vocab {VOCAB}".split()
BASE = [*NEW_MODEL, *"--seq-len 16 --batch-size 3 --steps 6 --lr 1e-2 --final-lr-frac 1 --val-every 0".split(),
        *"--sample-every 0 --threads 1".split()]


class Problem(Exception):
    """One line for a person."""


# ---- The files that the runs learn from ----


def numbers(count, seed):
    """A generator of our own: every version of Python gives these numbers."""
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 33


def write_data(folder):
    """Two training shards of unequal size, a validation shard, and a text. Each token leads to one of three."""
    for name, count, seed in (("train_0.bin", 211, 1), ("train_1.bin", 1500, 2), ("val.bin", 370, 3)):
        tokens = [3]
        for number in numbers(count - 1, seed):
            tokens.append((7 * tokens[-1] + (1, 1, 1, 2, 5)[number % 5]) % VOCAB)
        with guard.open_file(os.path.join(folder, name), "wb") as file:
            file.write(struct.pack(f"<256i{count}H", 20240520, 1, count, *[0] * 253, *tokens))
    words = ["the", "a", "cat", "dog", "sees", "likes", "and", "runs", "far", "away.\n"]
    with guard.open_file(os.path.join(folder, "text.txt"), "w", encoding="ascii") as file:
        file.write(" ".join(words[number % 10] for number in numbers(800, 4)))


# ---- The runs ----


def start_and_wait(command, ranks, environment, own):
    """What rank 0 prints. own: a folder for this row alone."""
    clean = {name: value for name, value in os.environ.items() if not re.match("(EMU|OMP|GOMP|NCCL)_", name)}
    clean.update(OMP_WAIT_POLICY="passive", EMU_THREADS="1", EMU_CHECK="0", XDG_CACHE_HOME=own)
    clean.update(environment)
    start = tempfile.mkdtemp(dir=own)
    processes = []
    try:
        for rank in range(ranks):
            place = f"-pi fs -pf {start} -pn {ranks} -pr {rank}".split() if ranks > 1 else []
            with guard.open_file(f"{start}.{rank}", "wb") as output:
                processes.append(subprocess.Popen([*command, *place], stdin=subprocess.DEVNULL, stdout=output,
                                                  stderr=subprocess.STDOUT, env=clean, cwd=own))
        failed = [rank for rank, process in enumerate(processes) if process.wait(TIMEOUT) != 0]
    except subprocess.TimeoutExpired:
        raise Problem(f"no end within {TIMEOUT} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    with open(f"{start}.{failed[0] if failed else 0}", encoding="utf-8", errors="replace") as output:
        text = output.read()
    if failed:
        raise Problem("failed: " + " ".join(text.strip().splitlines()[-1:]))
    return text


def pairs(words):
    return dict(zip(words[::2], words[1::2]))


def run(name, words, data, own):
    """The weights hash and the last loss of a row."""
    options = {"--train-data": f"{data}/train_*.bin", "--val-data": f"{data}/val.bin", **pairs(BASE)}
    special = [word for word in words if word in ("resumed", "from-file")]
    variables = dict(word.split("=") for word in words if "=" in word)
    options.update(pairs([word for word in words if word not in special and "=" not in word]))
    if options["--train-data"] == "TEXT":
        options["--train-data"] = f"{data}/text.txt"
        del options["--val-data"]
    ranks, folder = int(variables.pop("ranks", 1)), os.path.join(own, "run")

    def train():
        program = os.path.join(ROOT, PROGRAMS[name.split("-")[0]][-1])
        return start_and_wait([program, *sum(options.items(), ())], ranks, variables, own)

    if special:
        half = int(options["--steps"]) // 2
        options.update({"--out-dir": folder, "--checkpoint-every": str(half)})
        train()
    if "resumed" in special:
        for path in glob.glob(f"{folder}/*_{2 * half:08}*"):
            os.remove(path)
        options["--resume"] = "1"
    elif special:
        options = {option: value for option, value in options.items()
                   if option not in ("--out-dir", "--checkpoint-every", *NEW_MODEL)}
        options["--init"] = f"{folder}/model_{half:08}.bin"
    out = train()
    steps = len(re.findall(r"^step +\d+/\d+ \| loss ", out, re.M))
    if "resumed" in special and steps != half:
        raise Problem(f"resumed, but trained {steps} steps instead of the last {half}")
    losses = re.findall(r"^step .*\bloss ([\d.]+)", out, re.M)  # the last is of a validation, if there was one
    weights = re.findall(r"^weights hash ([0-9a-f]{16})$", out, re.M)
    if not weights or not losses:
        raise Problem("printed no weights hash, or no loss")
    return weights[0], losses[-1]


def found(row, data):
    name, _, _, *words = row
    with tempfile.TemporaryDirectory(prefix="weights_hashes.") as own:
        try:
            return run(name, words, data, own)
        except Problem as problem:
            return str(problem), ""


# ---- The table ----


def made_with():
    """The lines of the table's head: what decides on roundings here."""
    lines = []
    for goal in ("train_gpt2", "train_gpt2emu"):
        dry = subprocess.run(["make", "-nB", "CCACHE=", goal], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                             text=True).stdout
        link = next((line for line in dry.splitlines() if f"-o {goal} " in line), "cc").split()
        compiler = next(word for word in link if word != "CCACHE=").replace("CXX=", "")
        version = subprocess.run([compiler, "--version"], stdout=subprocess.PIPE, text=True).stdout
        flags = sorted(word for word in link if re.match("-([Omf]|std)", word))
        lines.append(f"{goal}: {version.splitlines()[0]}, {' '.join(flags)}")
    processor = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            facts = re.findall(r"^(model name|cpu family|model|CPU part)\s*: (.*)$", file.read(), re.M)
        processor += "".join(f", {name} {value}" for name, value in dict.fromkeys(facts))
    return [MADE_WITH + line for line in [*lines, f"{' '.join(platform.libc_ver())}, {processor}"]]


def read_table():
    with open(TABLE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return comments, [line.split() for line in lines if line not in comments]


def write_table(comments, rows, results):
    failed = [f"{row[0]} {result[0]}" for row, result in zip(rows, results) if not result[1]]
    if failed:
        raise Problem("the table is as before: " + "; ".join(failed))
    lines = [line for line in comments if not line.startswith(MADE_WITH)] + made_with()
    lines += [" ".join([f"{row[0]:30}", *result, *row[3:]]) for row, result in zip(rows, results)]
    with guard.new_file(TABLE, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def check(rows, results):
    """Prints the rows that differ, and returns how many."""
    different = [(row, result) for row, result in zip(rows, results) if (row[1], row[2]) != result]
    for row, result in different:
        print(f"{row[0]}: expected {row[1]} loss {row[2]}, found {' loss '.join(filter(None, result))}")
    print(f"{len(different)} of {len(rows)} rows differ")
    return len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("--check", "--write", "--list"):
        action.add_argument(name, action="store_true")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows whose name holds this")
    arguments = parser.parse_args()
    comments, rows = read_table()
    rows = [row for row in rows if arguments.only in row[0]]
    if not rows or arguments.write and arguments.only:
        parser.error("--write takes all rows" if rows else f"no row's name holds '{arguments.only}'; see --list")
    if arguments.list:
        print("\n".join(" ".join([row[0], *row[3:]]) for row in rows))
        return
    for program in dict.fromkeys(row[0].split("-")[0] for row in rows):
        subprocess.run(["make", "-s", "-j2", *PROGRAMS[program]], cwd=ROOT, check=True)
    if arguments.check and set(made_with()) != {line for line in comments if line.startswith(MADE_WITH)}:
        print(f"{os.path.basename(TABLE)} was made with another compiler, flags, C library or processor: if rows "
              "differ, first make the table with --write at an earlier revision")
    with tempfile.TemporaryDirectory(prefix="weights_hashes.") as data:
        write_data(data)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda row: found(row, data), rows))
    if arguments.write:
        write_table(comments, rows, results)
        print(f"{len(rows)} rows written")
    elif check(rows, results):
        sys.exit(1)


if __name__ == "__main__":
    guard.screens("stdout", "stderr")
    try:
        main()
    except (Problem, OSError, subprocess.CalledProcessError) as problem:
        sys.exit(f"weights_hashes.py: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
