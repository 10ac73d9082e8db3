"""Prints the tables of memory that the documents take from --plan: the stages of sharding (doc/several_gpus.md), the
levels of --recompute (doc/speed.md) and the sizes of --init (doc/usage.md; README.md has some of them). No GPU is
needed.

    python3 dev/plan_table.py [./train_gpt2emu [./train_gpt2]]
"""
import math
import os
import re
import subprocess
import sys

# Model, tokens in a sequence, tokens in a step, and for each number of GPUs the sequences in a micro-batch.
MODELS = [("d12", 1024, 524288, {8: 64, 64: 8, 512: 1}),
          ("d48", 1024, 1048576, {8: 16, 64: 16, 512: 2}),
          ("gpt3:c4096", 2048, 2097152, {8: 4, 64: 4, 512: 2})]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def text_of(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def plan(program, words):
    """What --plan all prints. EMU_CUDNN: also the emulated program plans with cuDNN, as a build for a GPU does."""
    environment = dict(os.environ, EMU_CUDNN="1", CUDA_VISIBLE_DEVICES="")  # not for the GPU of this machine
    return subprocess.run([program, "--plan", "all", *words.split()], stdout=subprocess.PIPE, text=True, check=True,
                          env=environment).stdout


def memory(out):
    return int(re.search(r"^total (\d+) bytes", out, re.M)[1]) / 2**30


def sent(out):
    return sum(map(int, re.search(r"(\d+) bytes of gradients, (\d+) of parameters", out).groups())) / 1e9


def stages(gpu):
    for model, length, step, batches in MODELS:
        for gpus, batch in batches.items():
            outs = [plan(gpu, f"-e {model} -np {gpus} -b {batch} -t {length} -d {step} -r 0 -z {z}") for z in range(4)]
            cells = " | ".join(f"{memory(out):.1f} GiB, {sent(out):.1f} GB" for out in outs)
            yield f"| {model}, {step:,} | {gpus} x {batch} | {cells} |"


def levels(gpu):
    return [f"| {r} | {memory(plan(gpu, f'-e d12 -b 64 -t 1024 -r {r}')):.1f} GiB |" for r in range(4)]


def rounded_up(gib):
    """From 10 GiB on to whole ones: a machine's SIMD width moves some MiB."""
    return f"{math.ceil(gib):,} GiB" if gib > 10 else f"{math.ceil(10 * gib) / 10} GiB"


def sizes(gpu, cpu):
    row = r'^    X\("([\w:]+)", (?:"(\w+)", )?(\d+), (\d+), (\d+), (\d+)\)'
    rows = re.findall(row, text_of("llmc/model/gpt2.h"), re.M)
    for name, millions, *shape in sorted(rows, key=lambda row: (row[0].startswith("gpt3"), int(row[2]))):
        size = f"-e {name} --context {shape[-1]} "
        on_cpu, on_gpu = plan(cpu, size + "-b 4 -t 64 --threads 1"), plan(gpu, size + "-b 8 -t 1024 -r 0")
        names = f"`{millions}`, `{name}`" if millions else f"`{name}`"
        parameters = int(re.search(r"^parameters +(\d+)", on_cpu, re.M)[1])
        numbers = " | ".join(f"{int(number):,}" for number in (parameters, *shape))
        yield f"| {names} | {numbers} | {rounded_up(memory(on_cpu))} | {rounded_up(memory(on_gpu))} |"


def llamas(gpu, cpu):
    """The sizes of released Llamas, where the programs are built."""
    row = r'^    X\("([\w:]+)", "\w+", (\d+), (\d+), (\d+), (\d+), (\d+), (\d+), \d+, (\d+), '
    for name, *shape in re.findall(row, text_of("llmc/model/llama3.h"), re.M) if os.path.exists(gpu) else ():
        on_cpu, on_gpu = plan(cpu, f"-e {name} -b 4 -t 64 --threads 1"), plan(gpu, f"-e {name} -b 8 -t 1024 -r 0")
        parameters = re.search(r"^parameters +(\d+)", on_cpu, re.M)[1]
        numbers = " | ".join(f"{int(number):,}" for number in (parameters, *shape))
        yield f"| `{name}` | {numbers} | {rounded_up(memory(on_cpu))} | {rounded_up(memory(on_gpu))} |"


def tables(gpu="./train_gpt2emu", cpu="./train_gpt2"):
    """Document -> its rows."""
    of_llamas = llamas(gpu.replace("gpt2", "llama3"), cpu.replace("gpt2", "llama3"))
    return {"doc/several_gpus.md": list(stages(gpu)), "doc/speed.md": levels(gpu),
            "doc/usage.md": [*sizes(gpu, cpu), *of_llamas]}


if __name__ == "__main__":
    for document, lines in tables(*sys.argv[1:]).items():
        print(document, *lines, "", sep="\n")
