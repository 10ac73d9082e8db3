"""The table of runs: runs that must end with equal weights, bit for bit.

A row: group, program, ranks, options that replace or follow those of BASE, and after each bar what a further run has
beside them. All runs of a row have one hash. Programs: cpu, and the GPU trainer in bf16 and fp32; after "llama-" the
trainers for Llama. NAME=VALUE is for the environment, and the value - leaves an option out. "resumed" removes the last
checkpoint and goes on from the middle. A group with a star runs with --all only.
"""
import glob
import importlib
import os

import pytest

import cli
from cli import weights_hash

BASE = ("--layers 2 --heads 2 --channels 32 --context 16 --vocab 61 --seq-len 16 --batch-size 3 --steps 6 --lr 1e-2 "
        "--final-lr-frac 1 --val-every 0 --sample-every 0 --threads 1")
FP32 = os.path.abspath("build/emu_fp32/train_gpt2emu")
ALL = "--total-batch 96 --schedule cosine --warmup 2 --weight-decay 0.1 --shuffle 1 --steps 30"
LLAMA = "--heads 4 --kv-heads 2"  # of each row for Llama
BIASES = ("--layers - --heads - --kv-heads - --channels - --context - --vocab - --init "
          "dev/test/fixtures/llama/g2_tied_bias.bin")
CUDNN = "--context 128 --seq-len 128 --batch-size 1 --steps 2 --attention cudnn EMU_CUDNN=1"
UNTIED = "--init llama:8B"
TESTS = "--val-every 2 --val-batches 3 --sample-every 3 --sample-tokens 9"
TABLE = f"""
plain          cpu        1 | --threads 2 | --recompute 1 | --recompute 2 | --recompute 3 --threads 3 | {TESTS} \\
                            | resumed
accumulation   cpu        1 --total-batch 144 | --recompute 3 --threads 2 | resumed
all            cpu        1 {ALL} | resumed | --recompute 2 --threads 2
outliers       cpu        1 --steps 200 --skip-loss-z 1 --skip-grad-z 1 | resumed
muon           cpu        1 --optimizer muon | --threads 2 | --recompute 3 | resumed
plain          bf16       1 | --threads 2 EMU_THREADS=2 | --num-processes 1 --zero-stage 3 \\
                            | --recompute 0 EMU_CHECK=1 | --recompute 2 EMU_CHECK=1 | --recompute 3 EMU_CHECK=1 \\
                            | EMU_SCHEDULE=random:3 | EMU_MEMORY=1200 EMU_CAPABILITY=8.0 | {TESTS} | resumed
outliers*      bf16       1 --steps 200 --skip-loss-z 1 --skip-grad-z 1 | resumed
accumulation*  bf16       1 --total-batch 144 | --recompute 3
gelu-fusion*   bf16       1 -ge 1 | --recompute 0
gelu-backward* bf16       1 -ge 2 --recompute 0 | --recompute 2
cudnn*         bf16       1 {CUDNN} | --recompute 3 | resumed
fp8*           bf16       1 --fp8 1 | --recompute 0 EMU_CHECK=1 | --recompute 2 EMU_CHECK=1 \\
                            | --recompute 3 EMU_SCHEDULE=random:3 | resumed
fp8-muon*      bf16       1 --fp8 1 --optimizer muon | --recompute 3 | resumed
moments*       bf16       1 --moments bf16 | --offload all EMU_CHECK=1 | resumed
moments-muon*  bf16       1 --moments bf16 --optimizer muon | --offload all EMU_CHECK=1 | resumed
no-master*     bf16       1 --optimizer muon --master-weights 0 | --recompute 3 | resumed
muon*          bf16       1 --optimizer muon | --recompute 3 | EMU_SCHEDULE=reversed | resumed
ranks          bf16       2 --total-batch 96 | --zero-stage 1 | --zero-stage 2 | --zero-stage 3 \\
                            | --zero-stage 3 resumed
ranks-sum*     bf16       2 --layers 3 --total-batch 192 | --zero-stage 1
ranks-parts*   bf16       2 --layers 3 --total-batch 192 --zero-stage 2 | --zero-stage 3 --recompute 3
ranks-fp8*     bf16       2 --fp8 1 | --zero-stage 1 | --zero-stage 3 --recompute 3
ranks-muon*    bf16       2 --optimizer muon --layers 3 --total-batch 96 --steps 4 | --zero-stage 1 \\
                            | --zero-stage 3 | --zero-stage 3 resumed
ranks-4*       bf16       4 --batch-size 1 | --zero-stage 1 | --zero-stage 3
plain*         fp32       1 | --recompute 3 | resumed
plain          llama-cpu  1 | --threads 2 | --recompute 1 | --recompute 2 | --recompute 3 --threads 3 | {TESTS} \\
                            | resumed
untied         llama-cpu  1 {UNTIED} {ALL} | resumed | --recompute 3 --threads 2
biases         llama-cpu  1 {BIASES} --total-batch 144 | --recompute 3 --threads 2 | resumed
muon           llama-cpu  1 {UNTIED} --optimizer muon | --threads 2 --recompute 3 | resumed
plain          llama-bf16 1 | --recompute 0 | --recompute 2 | --recompute 3 EMU_SCHEDULE=random:3 | {TESTS} | resumed
untied         llama-bf16 1 {UNTIED} --total-batch 96 --steps 4 | --recompute 3 EMU_CHECK=1 | resumed
biases         llama-bf16 1 {BIASES} | --recompute 3 EMU_CHECK=1 | resumed
fp8*           llama-bf16 1 {UNTIED} --fp8 1 | --recompute 0 EMU_CHECK=1 | --recompute 2 EMU_CHECK=1 \\
                            | --recompute 3 EMU_CHECK=1
fp8-biases*    llama-bf16 1 {BIASES} --fp8 1 | --recompute 3 EMU_CHECK=1
cudnn*         llama-bf16 1 {CUDNN} --kv-heads 4 | --recompute 3 | resumed
muon*          llama-bf16 1 --optimizer muon | --recompute 3 EMU_CHECK=1 | resumed
muon-untied*   llama-bf16 1 {UNTIED} --optimizer muon --fp8 1 | --recompute 3 EMU_SCHEDULE=reversed | resumed
ranks          llama-bf16 2 --total-batch 96 | --zero-stage 1 | --zero-stage 2 | --zero-stage 3 --recompute 3 \\
                            | --zero-stage 3 resumed
ranks-untied*  llama-bf16 2 {UNTIED} --total-batch 96 --optimizer muon --steps 2 | --zero-stage 2 \\
                            | --zero-stage 3 --recompute 3
ranks-biases*  llama-bf16 2 {BIASES} --total-batch 96 | --zero-stage 3 --recompute 3 EMU_CHECK=1
ranks-parts*   llama-bf16 2 {UNTIED} --total-batch 192 --zero-stage 2 | --zero-stage 3 --recompute 3
ranks-4*       llama-bf16 4 --batch-size 1 | --zero-stage 3 --recompute 3
ranks-muon-4*  llama-bf16 4 {UNTIED} --batch-size 1 --layers 3 --optimizer muon | --zero-stage 1 \\
                            | --zero-stage 3 --recompute 3
plain*         llama-fp32 1 {UNTIED} | --recompute 3 | resumed
ranks*         llama-fp32 2 --total-batch 96 --optimizer muon | --zero-stage 3 --recompute 3
"""
LINES = TABLE.replace("\\\n", "").strip().splitlines()


def runs_of(line):
    """The words of each run of a row."""
    first, *others = line.split("|")
    return [f"{first} {more}".split() for more in ("", *others)]


def data():
    """Two training shards of unequal size, and one to validate with. Each token leads to one of three."""
    for name, count, seed in (("runs_train_0.bin", 211, 1), ("runs_train_1.bin", 1500, 2), ("runs_val.bin", 370, 3)):
        tokens = [3]
        for step in cli.random_tokens(count - 1, 3, seed):
            tokens.append((7 * tokens[-1] + (1, 2, 5)[step]) % 61)
        cli.shard(name, tokens)
    return {"--train-data": cli.path("runs_train_*.bin"), "--val-data": cli.path("runs_val.bin")}


def trainer_of(program):
    """The trainer of a row, or a skip where it is not built."""
    trainer = cli.CPU
    if program.endswith("bf16"):
        trainer = importlib.import_module("gpu_program").GPU
    elif program.endswith("fp32"):
        trainer = cli.Trainer(FP32, EMU_CHECK="0", EMU_THREADS="1")
    if program.startswith("llama"):
        trainer = cli.of_llama(trainer)
    if not os.path.exists(trainer.program):
        pytest.skip(f"no {trainer.program} (in build/emu_fp32: make PRECISION=FP32 BUILD=build/emu_fp32)")
    return trainer


def run(_, program, ranks, *row):
    """The weights hash of a run."""
    words = [word for word in row if word != "resumed"]
    environment = dict(word.split("=") for word in words if "=" in word)
    trainer, llama = trainer_of(program), LLAMA if program.startswith("llama") else ""
    words = [*f"{BASE} {llama}".split(), *(word for word in words if "=" not in word)]
    options = {**data(), **dict(zip(words[::2], words[1::2]))}
    options = {name: value for name, value in options.items() if value != "-"}

    def train(*more):
        arguments = [*sum(options.items(), ()), *more]
        if ranks == "1":
            return trainer.ran(*arguments, **environment)
        return importlib.import_module("ranks").ran(int(ranks), *arguments, program=trainer.program, **environment)

    if "resumed" not in row:
        out = train()
        assert ("--skip-loss-z" in words) == ("update skipped" in out), out
        return weights_hash(out)
    half, folder = int(options["--steps"]) // 2, cli.new_folder("runs")
    train("--out-dir", folder, "--checkpoint-every", half)
    for path in glob.glob(f"{folder}/*_{2 * half:08}*"):
        os.remove(path)
    out = train("--out-dir", folder, "--checkpoint-every", half, "--resume")
    assert cli.steps_of(out) == [*range(half + 1, 2 * half + 1)], out
    return weights_hash(out)


@pytest.mark.parametrize("line", [
    pytest.param(line, marks=[pytest.mark.long] if line.split()[0][-1] == "*" else [],
                 id="-".join(line.split()[1::-1]).strip("*")) for line in LINES])
def test_equal_weights(line):
    hashes = {" ".join(words): run(*words) for words in runs_of(line)}
    assert len(hashes) > 1 and len(set(hashes.values())) == 1, hashes


def test_no_two_groups_are_alike():
    """Of the CPU trainers, which are fast: an option that does nothing is found, if the steps are as many."""
    hashes = {line: run(*runs_of(line)[0]) for line in LINES if line.split()[1].endswith("cpu")}
    assert len(set(hashes.values())) == len(hashes) > 3, hashes
