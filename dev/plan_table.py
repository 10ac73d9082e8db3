"""Prints the tables of memory that the documents take from --plan: the stages of sharding and grids of ranks
(doc/several_gpus.md, doc/17_grid.md), the levels of --recompute (doc/speed.md) and the sizes of --init (doc/usage.md;
README.md has some of them). No GPU is needed. dev/bench/predict.py predicts the steps of the grids.

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
# Grids of llama:8B, for a number of GPUs and tokens in a sequence, with steps of 4,194,304 tokens.
GRIDS = {(8, 8192): ["-z 1", "-z 2", "-z 3", "--tp 2", "--tp 8", "--cp 2", "--pp 2", "--pp 2 --tp 2"],
         (64, 8192): ["-z 1", "-z 3", "--tp 2", "--tp 8", "--cp 2", "--pp 2 --pp-schedule interleaved --pp-chunks 4",
                      "--pp 8", "--pp 2 --tp 2"],
         (64, 131072): ["--tp 8 --attention own", "--tp 8 --cp 2", "--tp 8 --cp 8", "--tp 2 --cp 8"]}
# Grids for a Llama of 8B, in short and in long sequences, and the lines of chapter 17's program whose bytes they send.
GRID_RUN = "--init llama:8B --attention own -b 1"
CHAPTER_GRIDS = {"-t 8192 -d 131072 -r 0": {
    "-np 1": "", "-np 8 -z 1": "dp 8, ZeRO-1", "-np 8 -z 3": "", "-np 8 --tp 8": "tp 8", "-np 8 --tp 8 --sp 0": "",
    "-np 8 --pp 8": "pp 8", "-np 8 --cp 8 -z 1": "cp 8, k and v", "-np 8 --tp 2 --cp 2 --pp 2 -z 1": ""},
         "--context 131072 -t 131072 -d 1048576 -r 3": {
    "-z 3 -np 8": "", "--pp 8 -np 8": "", "--tp 8 -np 8": "", "--cp 8 -z 1 -np 8": ""}}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import predict  # noqa: E402 (its folder had to be named first)


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


def grids(gpu):
    """Of the first and of the last stage the memory, of the first what it sends."""
    kinds = [rf"(\d+) {what}" for what in ("bytes of grad", "of param", "bytes for tens", "bytes of keys", "bytes to")]
    for gpus, length, grid in ((*key, grid) for key, rows in GRIDS.items() for grid in rows if os.path.exists(gpu)):
        words = f"-e llama:8B -np {gpus} -t {length} -b 1 -d 4194304 {grid}{'' if '-z' in grid else ' -z 1'}"
        out = plan(gpu, words + " -r 0")
        stages = re.findall(r"^stage \d+ +([\d.]+) GiB", out, re.M) or [memory(out)]
        ends = " | ".join(f"{float(stage):.1f} GiB" for stage in (stages[0], stages[-1]))
        sums = (sum(map(int, re.findall(kind, out)[:1])) / 1e9 for kind in kinds)
        sends = "|".join(f" {gigabytes:,.1f} " if gigabytes else " " for gigabytes in sums)
        step = predict.Step(predict.options((words + (" --attention own" if "cp" in grid else "")).split()))
        yield f"| {gpus} x {length:,} | `{grid}` | {ends} |{sends}| {step.seconds:.1f} s |"


def levels(gpu):
    return [f"| {r} | {memory(plan(gpu, f'-e d12 -b 64 -t 1024 -r {r}')):.1f} GiB |" for r in range(4)]


def rounded_up(gib):
    """From 10 GiB on to whole ones: a machine's SIMD width moves some MiB."""
    return f"{math.ceil(gib):,} GiB" if gib > 10 else f"{math.ceil(10 * gib) / 10} GiB"


def sizes(gpu, cpu):
    row = r'^    X\("([\w:]+)", (?:"(\w+)", )?(\d+), (\d+), (\d+), (\d+)\)'
    rows = re.findall(row, predict.text_of("llmc/model/gpt2.h"), re.M)
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
    for name, *shape in re.findall(row, predict.text_of("llmc/model/llama3.h"), re.M) if os.path.exists(gpu) else ():
        on_cpu, on_gpu = plan(cpu, f"-e {name} -b 4 -t 64 --threads 1"), plan(gpu, f"-e {name} -b 8 -t 1024 -r 0")
        parameters = re.search(r"^parameters +(\d+)", on_cpu, re.M)[1]
        numbers = " | ".join(f"{int(number):,}" for number in (parameters, *shape))
        yield f"| `{name}` | {numbers} | {rounded_up(memory(on_cpu))} | {rounded_up(memory(on_gpu))} |"


CHAPTER_SENT = (r"(\d+) (?:bytes )?"
                r"(of gradients|of parameters|for tensor parallelism|of keys and values|to other stages)")


def most_sent(out):
    """The bytes that a rank sends in a step, of each kind, in the stage that sends most."""
    stages = re.split(r"^stage .*\n", out[out.index("\na step"):], flags=re.M)
    kinds = [{what: int(number) for number, what in re.findall(CHAPTER_SENT, stage)} for stage in stages]
    return max(kinds, key=lambda stage: sum(stage.values()))


def chapter_grids(gpu):
    """The memory of the first stage in GiB, and what a rank sends, where the program is built."""
    grid_runs = [(run, *grid) for run, of_run in CHAPTER_GRIDS.items() for grid in of_run.items()]
    link = predict.LINK * predict.gpus()["h100"].link  # bytes that a GPU sends in a second
    for run, words, line in grid_runs if os.path.exists(gpu) else ():
        out = plan(gpu, f"{GRID_RUN} {run} {words}")
        kinds = re.search(r"^ += (\S+) parameter \+ (\S+) gradient \+ (\S+) optimizer", out, re.M).groups()
        sent_of, sizes = most_sent(out), [*map(float, kinds)]
        all_sent = sum(sent_of.values())
        sizes += [memory(out) - sum(sizes), memory(out), all_sent / 1e9]
        cells = " | ".join(f"{size:.1f}" for size in sizes)
        yield f"| `{words}` | {cells} | {all_sent / link:.2f} |"
        if line:
            yield f"{line:<18}{sent_of.get('of keys and values', all_sent):14}"


def tables(gpu="./train_gpt2emu", cpu="./train_gpt2"):
    """Document -> its rows."""
    llama = gpu.replace("gpt2", "llama3")
    of_llamas = llamas(llama, cpu.replace("gpt2", "llama3"))
    return {"doc/several_gpus.md": [*stages(gpu), *grids(llama)], "doc/speed.md": levels(gpu),
            "doc/usage.md": [*sizes(gpu, cpu), *of_llamas], "doc/17_grid.md": list(chapter_grids(llama))}


if __name__ == "__main__":
    for document, lines in tables(*sys.argv[1:]).items():
        print(document, *lines, "", sep="\n")
