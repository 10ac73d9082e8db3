"""The trainers for Llama: sizes, plans, refusals, and checkpoints that pass from one trainer to the other.

Equal weights of equal runs: test_runs.py. Losses on several ranks: test_gpu_ranks.py. Beside each other:
test_gpu_trainer.py. Numbers of transformers: test_llama3.c, test_llama3.cu.
"""
import os
import re
import struct

import pytest

import cli
import evalfiles
import gpu_program
import ranks
from cli import LLAMA, losses, new_folder, of_llama, steps_of, stopped_after, val_losses, weights_hash
from tools import ROOT

GPU = of_llama(gpu_program.GPU)
FP32 = os.path.join(ROOT, "build", "emu_fp32", "train_llama3emu")
FIXTURES = os.path.join(ROOT, "dev", "test", "fixtures")
NAMES = ("g1_untied", "g2_tied_scaled", "g4_untied_scaled_hs16", "g8_tied_hs8", "g2_tied_bias", "g4_untied_bias_hs16",
         "g3_tied_scaled", "g2_untied_scaled_odd")
TEXT = ["-i", cli.text_file()]
SIZE = ["--layers", 2, "--heads", 4, "--kv-heads", 2, "--channels", 32, "--context", 16]
RUN = [*TEXT, *SIZE, "-t", 16, "-b", 2, "--lr", "3e-3", "-x", 6, *cli.QUIET]


def fixture(name):
    return os.path.join(FIXTURES, "llama", f"{name}.bin")


@pytest.mark.parametrize("size, parameters", (("1B", 1235814400), ("3B", 3212749824), ("8B", 8030261248),
                                              ("smollm2:135M", 134515008), ("360M", 361821120)))
def test_sizes(size, parameters):
    assert f"\nparameters  {parameters}, from the seed\n" in LLAMA.ran("-e", size, "--plan")


@pytest.mark.parametrize("gpus, answer", ((1, "no, "), (2, "yes, "), (8, "yes, ")))
def test_gpus_for_8B(gpus, answer):
    """Of 80 GB, with all that stage 3 shards: two GPUs, a sequence of 1,024 tokens on each."""
    out = GPU.ran("-e", "llama:8B", "-b", 1, "-np", gpus, "-z", 3, "-r", 3, "--plan", EMU_NO_GPU="1")
    assert f"\nfits        {answer}" in out and ", 32 heads (8 of keys), " in out, out


def test_planned_memory():
    """--plan says what a run on two ranks says that it takes; what it takes: test_llama3.cu."""
    for stage in (0, 3):
        out = ranks.ran(2, *RUN, "-z", stage, only={rank: {"program": GPU.program} for rank in range(2)})
        plan = GPU.ran(*RUN, "-z", stage, "-np", 2, "--plan", "--gpu-memory", 8, EMU_NO_GPU="1")
        memory = [re.search(r"^memory .*\n.*", text, re.M).group() for text in (out, plan)]
        assert memory[0] == memory[1], (out, plan)


def changed(option, value):
    """RUN with another value of this option."""
    at = RUN.index(option) + 1
    return [*RUN[:at], value, *RUN[at + 1:]]


def test_refusals():
    for option, value, says in (("--kv-heads", 3, "3 heads of keys and values: choose --kv-heads that divide heads"),
                                ("--kv-heads", 8, "8 heads of keys and values: choose --kv-heads"),
                                ("--channels", 36, "4 heads of size 9, 2 heads of keys and values: rotary"),
                                ("--channels", 34, "34 channels cannot be divided among 4 heads")):
        for trainer in (LLAMA, GPU):
            trainer.refused(*changed(option, value), says=[says])
    GPU.refused(*RUN, "--gelu-fusion", 1, says=["--gelu-fusion (-ge): got '1'"])
    for trainer in (cli.CPU, gpu_program.GPU):
        trainer.refused(*RUN, says=["2 heads of keys and values: GPT-2 has as many of each (no --kv-heads)"])
        trainer.refused(*TEXT, "-e", "llama:1B", says=["--init llama:1B: neither a size"])


def test_models_of_the_other_program():
    """In a file, and in the folder of a run."""
    gpt2, llama = new_folder("gpt2_run"), new_folder("llama_run")
    run = [*TEXT, "--layers", 1, "--heads", 2, "--channels", 16, "--context", 16, "-t", 16, "-x", 1, *cli.QUIET]
    cli.CPU.ran(*run, "-o", gpt2)
    LLAMA.ran(*run, "-o", llama)
    for model in (os.path.join(FIXTURES, "tiny.bin"), gpt2):
        for trainer in (LLAMA, GPU):
            trainer.refused(*TEXT, "-e", model, says=["of variant 0, this program computes 3", "0: GPT-2, for train_g"])
    for model in (fixture("g1_untied"), llama):
        for trainer in (cli.CPU, gpu_program.GPU):
            trainer.refused(*TEXT, "-e", model, says=["of variant 3, this program computes 0", "3: Llama 3, for t"])
    LLAMA.refused(*run, "-o", gpt2, "--resume", says=["variant 0"])
    cli.CPU.refused(*run, "-o", llama, "--resume", says=["variant 3"])


def test_data_of_another_vocabulary():
    """A token that the model lacks, and a tokenizer of another size."""
    shard = cli.shard("large_train.bin", [*range(60), 67] * 9)
    LLAMA.refused("-i", shard, "-e", fixture("g1_untied"), "-t", 16, "-x", 1, says=[shard, "67"])
    LLAMA.refused(*TEXT, "-e", fixture("g1_untied"), "-t", 16, "-x", 1, says=["257 tokens, the model 67", "llama:d12"])


def test_help_is_of_this_program():
    for trainer, help_text in ((LLAMA, LLAMA.ran("--help", "all")), (GPU, GPU.ran("--help", "all"))):
        assert f"Usage: {trainer.name} " in help_text and "Trains a Llama 3 model" in help_text, help_text
        assert "train_gpt2" not in help_text and "recomputes 1: SwiGLU, 2: RMSNorm too" in help_text, help_text


# ---- Evaluating and training ----


@pytest.mark.parametrize("name", NAMES)
def test_evaluates_a_file(name):
    """--steps 0 with a file such as dev/hf.py makes: the mean loss that transformers computes, on the CPU in fp32 to
    the last digit printed but one, on the GPU as near as distances.txt says of bf16."""
    data = cli.read(os.path.join(FIXTURES, "llama", f"{name}_state.bin"))
    B, T, steps = struct.unpack_from("<3i", data, 8)
    tokens = struct.unpack_from(f"<{2 * B * T}i", data, 1024)
    want = struct.unpack_from("<f", data, len(data) - 4 * steps)[0]
    shards = [cli.shard(f"{name}_{b}_val.bin", [*tokens[b * T:(b + 1) * T], tokens[(B + b + 1) * T - 1]])
              for b in range(B)]
    for trainer, limit in ((LLAMA, 2e-6), (GPU, 0.0172)):
        if "odd" in name and trainer is GPU:
            trainer.refused("-e", fixture(name), "-j", shards[0], "-t", T, "-x", 0, says=["20 channels"])
            continue
        got = [val_losses(trainer.ran("-e", fixture(name), "-j", shard, "-t", T, "-x", 0, "-s", 0))[0]
               for shard in shards]
        assert abs(sum(got) / B - want) <= limit, (got, want)


@pytest.mark.parametrize("name", ("g4_untied_bias_hs16", "g3_tied_scaled"))
def test_saves_what_it_has_read(name):
    """With a learning rate of 0: the header, but for the tokenizer's hash, and each tensor, from the parts of two ranks
    too."""
    shard, only = cli.shard("few_train.bin", cli.random_tokens(200, 67)), {r: {"program": GPU.program} for r in (0, 1)}
    run = ["-e", fixture(name), "-i", shard, "-t", 16, "-b", 1, "-d", 32, "-x", 1, "--lr", 0, *cli.QUIET, "-o"]
    LLAMA.ran(*run, new_folder("saved_cpu"))
    ranks.ran(2, *run, new_folder("saved_gpu"), "-z", 3, only=only)
    want = cli.read(fixture(name))
    for folder in ("saved_cpu", "saved_gpu"):
        got = cli.read(os.path.join(folder, "model_00000001.bin"))
        assert got[:1016] == want[:1016] and got[1024:] == want[1024:], folder


def test_questions_longer_than_a_sequence():
    """They need more angles than a step; a run that asks them ends with the weights of one that does not."""
    shard, name = cli.shard("chain_train.bin", evalfiles.chain(2000, 1)), evalfiles.eval_file(
        "chain_val.bin", evalfiles.chain_questions(4))
    run = ["-i", shard, "--vocab", 61, *SIZE[:-1], 32, "-t", 8, "-b", 1, "-x", 4, "-v", 3, "-s", 0]
    for trainer in (LLAMA, GPU):
        out = trainer.ran(*run, "-h", 1, "--hellaswag-data", name, EMU_CHECK="1")
        assert [step for step, _, _ in evalfiles.results(out)] == [0, 3, 4], out
        assert weights_hash(out) == weights_hash(trainer.ran(*run)), out


@pytest.mark.parametrize("size", ("llama:d2", pytest.param("llama:8B", marks=pytest.mark.long)))
def test_overfits_a_batch(size):
    """Tied and untied."""
    shard = cli.shard("overfit_train.bin", cli.random_tokens(100, 257))
    run = ["-i", shard, *SIZE, "-e", size, "--vocab", 257, "-t", 16, "-b", 2, "-x", 40, "--lr", "1e-2", "--overfit",
           "--schedule", "constant", *cli.QUIET]
    for trainer in (LLAMA, GPU):
        out = trainer.ran(*run)
        assert losses(out)[0] > 5 and losses(out)[-1] < 0.05, (trainer.name, out)


def check_exchange(gpu, limit, more, *precise):
    """A run of 6 steps, of which one trainer takes 3, and the other or another number of ranks the rest: with the
    losses of the CPU trainer alone."""
    def on_ranks(count, *arguments):
        only = {rank: {"program": gpu.program} for rank in range(count)}
        return ranks.ran(count, *RUN, *more, *precise, "-d", 128, "-b", 4 // count, *arguments, only=only)

    def on_cpu(*arguments):
        return LLAMA.ran(*RUN, *more, "-d", 128, *arguments)

    folders = [new_folder("exchange_cpu"), new_folder("exchange_gpu")]
    outs = [on_cpu("-n", 3, "-o", folders[0]), on_ranks(2, "-z", 3, "-n", 3, "-o", folders[1])]
    want = losses(outs[0])
    assert all(abs(a - b) <= limit * a for a, b in zip(want, losses(outs[1]), strict=True)), outs
    for out in (on_cpu("-o", stopped_after(3, folders[1]), "--resume", "--allow-changes"),
                *(on_ranks(count, "-o", stopped_after(3, folders[0]), "-z", stage, "--resume", "--allow-changes")
                  for count, stage in ((1, 0), (2, 2), (4, 3)))):
        assert steps_of(out) == [4, 5, 6], out
        assert all(abs(a - b) <= limit * a for a, b in zip(want[3:], losses(out), strict=True)), (want, out)


@pytest.mark.parametrize("more", (["-e", "llama:d2"],
                                  pytest.param(["-e", "llama:8B", "--optimizer", "muon"], marks=pytest.mark.long)),
                         ids=("tied", "untied-muon"))
def test_checkpoints_are_exchanged(more):
    check_exchange(GPU, 1e-2, more)


@pytest.mark.long
@pytest.mark.parametrize("more", (["-e", "llama:d2"], ["-e", "llama:8B", "--optimizer", "muon"]), ids=("tied", "muon"))
def test_checkpoints_are_exchanged_in_fp32(more):
    """The losses of all are those of the CPU trainer, and so is a sample of likeliest tokens."""
    if not os.path.exists(FP32):
        pytest.skip("no fp32 program (make PRECISION=FP32 BUILD=build/emu_fp32 BIN=build/emu_fp32)")
    fp32 = cli.Trainer(FP32, "train_llama3emu", **GPU.environment)
    check_exchange(fp32, 1e-5, more, "-f", 0)  # TF32 rounds to 10 bits
    sample = ["-e", cli.path("exchange_gpu"), "-x", 0, "--prompt", "the cat ", "-g", 7, "--temperature", 0]
    assert cli.sample_of(LLAMA.ran(*sample)) == cli.sample_of(fp32.ran(*sample))
