"""Brings up to date what the documents take from the trainers' --plan: memory, traffic and utilisation of each stage of
sharding (doc/several_gpus.md), the predicted speeds (README.md), the levels of --recompute (doc/speed.md), the sizes of
--init (doc/usage.md, README.md).

    python3 dev/plan_table.py --check [program]     exit status 1 if they are not what --plan says now
    python3 dev/plan_table.py --write [program]     brings them up to date

program: ./train_gpt2cu or ./train_gpt2emu (the default). No GPU is needed. TRAIN_GPT2 names another CPU trainer than
./train_gpt2.
"""
import collections
import math
import os
import re
import subprocess
import sys

import guard

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Model, tokens in a sequence, tokens in a step, and for each number of GPUs the sequences in a micro-batch.
MODELS = [("d12", 1024, 524288, {8: 64, 64: 8, 512: 1}),
          ("d48", 1024, 1048576, {8: 16, 64: 16, 512: 2}),
          ("gpt3:c4096", 2048, 2097152, {8: 4, 64: 4, 512: 2})]
# The rows of README's table of speeds that --plan predicts.
SPEEDS = {"GPT-2 124M, bf16": "-e d12 -b 64 -t 1024", "GPT-2 124M, `--fp8`": "-e d12 -b 64 -t 1024 --fp8",
          "GPT-2 1558M, bf16": "-e d48 -b 16 -t 1024", "GPT-2 1558M, `--fp8`": "-e d48 -b 16 -t 1024 --fp8"}
LEVELS = "-e d12 -b 64 -t 1024 -d 524288"
# The sizes of --init: the batches with which the CPU and the GPU train.
CPU_BATCH, GPU_BATCH = "-b 4 -t 64 --threads 1", "-b 8 -t 1024 -r 0"
SIZES = "llmc/model/gpt2.h"


def plan(program, *words):
    """What --plan all prints. EMU_CUDNN: also the emulated program plans with cuDNN, as a build for a GPU does."""
    environment = dict(os.environ, EMU_CUDNN="1", CUDA_VISIBLE_DEVICES="")  # not for the GPU of this machine
    return subprocess.run([program, "--plan", "all", *map(str, words)], stdout=subprocess.PIPE, text=True, check=True,
                          env=environment).stdout


# ---- Stages of sharding ----


def stages(program, model, seq_len, total_batch, gpus, batch):
    """For each stage: bytes of GPU memory, bytes sent in a step, model-FLOPs utilisation in percent."""
    out = plan(program, "-e", model, "-np", gpus, "-b", batch, "-t", seq_len, "-d", total_batch, "-r", 0)
    rows = [line.split() for line in out.split("\n--zero-stage", 1)[1].splitlines()[1:5]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"], out
    return [(int(row[1]), int(row[3]) + int(row[4]), float(row[8].rstrip("%"))) for row in rows]


def stage_rows(program):
    lines = []
    for model, seq_len, total_batch, batches in MODELS:
        for gpus, batch in batches.items():
            cells = [f"{memory / 2**30:.1f} GiB, {sent / 1e9:.1f} GB, {mfu:.0f} %"
                     for memory, sent, mfu in stages(program, model, seq_len, total_batch, gpus, batch)]
            lines.append(f"| {model}, {total_batch:,} | {gpus} x {batch} | " + " | ".join(cells) + " |")
    return lines


# ---- Speeds and levels ----


def predicted(program, *words):
    """Tokens/s, and model-FLOPs utilisation in percent."""
    found = re.search(r"^predicted +(\d+) tokens/s, ([\d.]+)% MFU, ", plan(program, *words), re.M)
    return tuple(float(text) for text in found.groups())


def speed_cell(program, name):
    tokens, mfu = predicted(program, *SPEEDS[name].split(), "--gpu", "h100")
    return f"{int(float(f'{tokens:.3g}')):,} tokens/s ({mfu:.0f} % MFU)"


def level_rows(program):
    out = plan(program, *LEVELS.split(), "--gpu", "h100")
    rows = re.findall(r"^([0-3]) +(\d+) +[\d.]+ +[\d.]+ +([\d.]+) ms \( *([\d.]+)%\) +([\d.]+)$", out, re.M)
    lines = []
    for level, memory, ms, percent, bargain in rows:
        costs = f"{float(ms):.0f} ms ({percent} %) | {float(bargain):.0f} |" if level != "0" else "| |"
        lines.append(f"| {level} | {int(memory) / 2**30:.1f} GiB | {costs}")
    return lines


# ---- The sizes of --init ----

Size = collections.namedtuple("Size", "name names parameters layers heads channels context cpu gpu")


def gib(memory):
    """Rounded up: from 10 GiB on to whole ones. A machine's SIMD width, which moves some MiB, then does not show."""
    memory /= 2**30
    return f"{math.ceil(memory):,} GiB" if memory > 10 else f"{math.ceil(10 * memory) / 10} GiB"


def sizes(program):
    """Each size, with what its plans say."""
    found = []
    rows = re.findall(r'^    X\("([\w:]+)", (?:"(\w+)", "[\w-]+", )?(\d+), (\d+), (\d+), (\d+)\)', read(SIZES), re.M)
    for name, millions, *shape in rows:
        cpu = plan(os.environ.get("TRAIN_GPT2", "./train_gpt2"), "-e", name, *CPU_BATCH.split(), "--context", shape[-1])
        gpu = plan(program, "-e", name, *GPU_BATCH.split(), "--context", shape[-1])
        memory = [int(re.search(r"^total (\d+) bytes", out, re.M)[1]) for out in (cpu, gpu)]
        parameters = int(re.search(r"^parameters +(\d+)", cpu, re.M)[1])
        names = [millions, name] if millions else [name]
        found.append(Size(name, names, parameters, *map(int, shape), *map(gib, memory)))
    return sorted(found, key=lambda size: (size.name.startswith("gpt3"), size.parameters))


def size_row(size):
    names = ", ".join(f"`{name}`" for name in size.names)
    return (f"| {names} | {size.parameters:,} | {size.layers} | {size.heads} | {size.channels:,} | {size.context:,} "
            f"| {size.cpu} | {size.gpu} |")


# ---- The documents ----


def with_rows(text, header, rows):
    """The text with these rows in the table that has this header."""
    begin = text.index("\n", text.index("\n", text.index(header)) + 1) + 1
    return text[:begin] + "\n".join(rows) + text[text.index("\n\n", begin):]


def documents(program):
    """Names of the documents -> their text as it should be."""
    names = ("README.md", "doc/several_gpus.md", "doc/speed.md", "doc/usage.md")
    texts, all_sizes = {name: read(name) for name in names}, sizes(program)
    readme = texts["README.md"]
    for name in SPEEDS:
        row = re.compile(rf"^(\| {re.escape(name)} \|[^|\n]*\|)[^|\n]*\|", re.M)
        readme, count = row.subn(rf"\1 {speed_cell(program, name)} |", readme)
        assert count == 1, name
    for row in map(size_row, all_sizes):  # those that README.md has
        readme = re.sub(rf"^{re.escape(row.split(' | ')[0])} \|.*$", row, readme, flags=re.M)
    texts["README.md"] = readme
    texts["doc/usage.md"] = with_rows(texts["doc/usage.md"], "| `--init` | parameters |", map(size_row, all_sizes))
    gpus = texts["doc/several_gpus.md"]
    texts["doc/several_gpus.md"] = with_rows(gpus, "| model, tokens a step |", stage_rows(program))
    texts["doc/speed.md"] = with_rows(texts["doc/speed.md"], "| `--recompute` | memory |", level_rows(program))
    return texts


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def main():
    if sys.argv[1:2] not in (["--check"], ["--write"]) or len(sys.argv) > 3:
        sys.exit(__doc__)
    texts = documents(os.path.abspath(sys.argv[2] if len(sys.argv) > 2 else "./train_gpt2emu"))
    old = [name for name, text in texts.items() if text != read(name)]
    if old and sys.argv[1] == "--check":
        sys.exit(f"plan_table.py: {', '.join(old)}: not what --plan says now; --write brings it up to date")
    for name in old:
        with guard.new_file(os.path.join(ROOT, name), "w", encoding="utf-8") as file:
            file.write(texts[name])
    print("written:" if old else "up to date:", ", ".join(old or texts))


if __name__ == "__main__":
    main()
