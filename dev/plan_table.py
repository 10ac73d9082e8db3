"""Computes the last cells of the documents' rows of memory anew, from --plan. No GPU is needed.

    make train_gpt2emu train_llama3emu && python3 dev/plan_table.py     writes the rows into the documents
"""
import math
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "dev", "bench"))
import predict  # noqa: E402 (its folder had to be named first)

CPU, GPU, LLAMA = "-b 4 -t 64 --threads 1", "-b 8 -t 1024 -r 0", "-e llama:8B --attention own -b 1"
KINDS = "{kinds[0]:.1f} | {kinds[1]:.1f} | {kinds[2]:.1f} | {rest:.1f} | {memory:.1f} | {sent:.1f} | {at_360:.2f}"
# Document, the first cell of a row, and for its last cells: a program, its options, and what is shown. {0}: what the
# first cell says, {1} and so on: the cells that follow it.
TABLES = [
    ("several_gpus", "`(-e .*)`", [("train_gpt2emu", f"{{0}} -r 0 -z {stage}", "{memory:.1f} GiB, {sent:.1f} GB")
                                   for stage in range(4)]),
    ("several_gpus", "`(-np .*)`", [("train_llama3emu", "-e llama:8B -b 1 -d 4194304 -r 0 {0}",
                                     "{first:.1f} GiB | {last:.1f} GiB | {sent:,.1f} GB | {seconds:.1f} s")]),
    ("speed", "([0-3])", [("train_gpt2emu", "-e d12 -b 64 -t 1024 -r {0}", "{memory:.1f} GiB")]),
    ("usage", r"(?:`\d+M`, )?`((?:d|gpt3:c)\d+)`", [
        ("train_gpt2", f"-e {{0}} --context {{5}} {CPU}", "{room} GiB"),
        ("train_gpt2emu", f"-e {{0}} --context {{5}} {GPU}", "{room} GiB")]),
    ("usage", r"`((?:llama|smollm2):\d+[MB])`", [("train_llama3", f"-e {{0}} {CPU}", "{room} GiB"),
                                                 ("train_llama3emu", f"-e {{0}} {GPU}", "{room} GiB")]),
    ("17_grid", "`(-np .*)`", [("train_llama3emu", f"{LLAMA} -t 8192 -d 131072 -r 0 {{0}}", KINDS)]),
    ("17_grid", "`(-.* -np 8)`", [("train_llama3emu", f"{LLAMA} --context 131072 -t 131072 -d 1048576 -r 3 {{0}}",
                                   KINDS)])]


def plan(program, words, show):
    """Cells of what --plan says. EMU_CUDNN: the emulated program plans with cuDNN, too, as a build for a GPU does."""
    out = subprocess.run([f"./{program}", "--plan", "all", *words.split()], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                         check=True, env={**os.environ, "EMU_CUDNN": "1", "CUDA_VISIBLE_DEVICES": ""}).stdout
    memory = int(re.search(r"^total (\d+) bytes", out, re.M)[1]) / 2**30
    kinds = [float(size) for size in re.search(r"= (\S+) parameter \+ (\S+) gradient \+ (\S+) optimizer", out).groups()]
    ends = [float(size) for size in re.findall(r"^stage \d+ +(\S+) GiB", out, re.M)] or [memory]
    stages = re.split("^stage", out.partition("\na step")[2], flags=re.M)
    sent = max(sum(map(int, re.findall(r" (\d+) (?:bytes )?(?:of|for|to) ", stage))) for stage in stages) / 1e9
    seconds = predict.Step(words).seconds if "{seconds" in show else None
    # From 10 GiB on room is rounded up to whole ones: a machine's SIMD width moves some MiB.
    room = f"{math.ceil(memory):,}" if memory > 10 else math.ceil(10 * memory) / 10
    return show.format(memory=memory, kinds=kinds, rest=memory - sum(kinds), first=ends[0], last=ends[-1], sent=sent,
                       at_360=sent / 360, seconds=seconds, room=room).split(" | ")


def computed(name):
    """The text of doc/NAME.md with computed rows. Those of programs that are not built stay."""
    lines = predict.text_of(f"doc/{name}.md").split("\n")
    for _, first, columns in (table for table in TABLES if table[0] == name):
        for i, line in enumerate(lines if os.path.exists(os.path.join(ROOT, columns[-1][0])) else ()):
            found, cells = re.match(rf"\| {first} \| [^-]", line), line[2:-2].split(" | ")
            if found:
                words = [found[1], *(cell.replace(",", "") for cell in cells[1:])]
                last = sum((plan(program, run.format(*words), show) for program, run, show in columns), [])
                lines[i] = f"| {' | '.join(cells[:-len(last)] + last)} |"
    return "\n".join(lines)


if __name__ == "__main__":
    for document in sorted({table[0] for table in TABLES}):
        text = computed(document)
        with open(os.path.join(ROOT, "doc", f"{document}.md"), "w", encoding="utf-8") as file:
            file.write(text)
