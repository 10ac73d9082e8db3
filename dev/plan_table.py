"""Prints the table of README.md: what a stage of sharding takes of a GPU, what it sends, and how much of a GPU is used,
without recomputation.

    python3 dev/plan_table.py [program]     ./train_gpt2cu or ./train_gpt2emu; no GPU is needed
"""
import os
import subprocess
import sys

# Model, tokens in a sequence, tokens in a step, and for each number of GPUs the sequences in a micro-batch.
MODELS = [("d12", 1024, 524288, {8: 64, 64: 8, 512: 1}),
          ("d48", 1024, 1048576, {8: 16, 64: 16, 512: 2}),
          ("gpt3:c4096", 2048, 2097152, {8: 4, 64: 4, 512: 2})]


def stages(program, model, seq_len, total_batch, gpus, batch):
    """For each stage: bytes of GPU memory, bytes sent in a step, model-FLOPs utilisation in percent."""
    command = [program, "--plan", "-e", model, "-np", gpus, "-b", batch, "-t", seq_len, "-d", total_batch,
               "-r", 0]
    out = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [line.split() for line in out.split("--zero-stage", 1)[1].splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"], out
    return [(int(row[1]), int(row[2]) + int(row[3]), float(row[6].rstrip("%"))) for row in rows]


def table(program):
    lines = ["| model, tokens a step | GPUs x sequences | `-z 0` | `-z 1` | `-z 2` | `-z 3` |",
             "|---|---|---|---|---|---|"]
    for model, seq_len, total_batch, batches in MODELS:
        for gpus, batch in batches.items():
            cells = [f"{memory / 2**30:.1f} GiB, {sent / 1e9:.1f} GB, {mfu:.0f} %"
                     for memory, sent, mfu in stages(program, model, seq_len, total_batch, gpus, batch)]
            lines.append(f"| {model}, {total_batch:,} | {gpus} x {batch} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "./train_gpt2cu"))))
