"""The GPU trainer as its users run it, in the emulator: its runs, its files, its answers to HellaSwag and MMLU, and
what it says when something is wrong. What it shares with the CPU trainer: test_options.py.

TRAIN_GPT2CU names the program (./train_gpt2emu; on a machine with a GPU: ./train_gpt2cu), TRAIN_GPT2 the CPU trainer.
Some tests also run those for Llama.
"""
import functools
import re

import pytest

import cli
import evalfiles
import ranks
from cli import (CPU, LLAMA, QUIET, checkpoints, log_of, logged_steps, losses, norms, of_llama, steps_of, val_losses)
from evalfiles import eval_file, questions, relabelled, results
from gpu_program import EMULATED, GPU, ran, refused

MODEL = ["--layers", "2", "--heads", "2", "--channels", "32", "--context", "24", "--vocab", "300"]
BATCH = ["--seq-len", "16", "--batch-size", "2", "--total-batch", "64"]
OPTIMIZER = ["--lr", "3e-3", "--warmup", "2", "--final-lr-frac", "0.1", "--weight-decay", "0.1"]
STEPS = 5
# (CPU trainer, GPU trainer) and what a new model of theirs has besides.
TRAINERS = {"gpt2": (CPU, GPU), "llama3": (LLAMA, of_llama(GPU))}
MORE = {"gpt2": [], "llama3": ["--kv-heads", 1]}
of_both = pytest.mark.parametrize("model", TRAINERS)
only_emulated = pytest.mark.skipif(not EMULATED, reason="stands in for a machine that is not this one")


def data():
    """Two shards of unequal size, and one to validate with."""
    for name, count, seed in (("a_train_0.bin", 16 * 9 + 5, 1), ("a_train_1.bin", 16 * 23 + 1, 2),
                              ("a_val.bin", 16 * 5 + 3, 3)):
        cli.shard(name, cli.random_tokens(count, 300, seed))
    return ["--train-data", cli.path("a_train_*.bin"), "--val-data", cli.path("a_val.bin")]


RUN = [*data(), *MODEL, *BATCH, *OPTIMIZER, "--steps", STEPS, "--val-every", 2, "--val-sequences", 6,
       "--sample-every", 3, "--sample-tokens", 4]  # an ordinary run


@functools.lru_cache(None)
def precision():
    return re.search(r"^precision +(\w+)", ran(*RUN, "--plan"), re.M).group(1)


def check_close(got, want, limit=None):
    """limit: as a fraction; without it what the precision of a run allows beside that of the CPU trainer."""
    limit = limit or (1e-5 if precision() == "fp32" else 1e-2)
    assert len(got) == len(want) > 0 and all(abs(a - b) <= limit * b for a, b in zip(got, want)), (got, want)


@functools.lru_cache(None)
def straight(model="gpt2"):
    """What an uninterrupted run prints, with all checks."""
    return TRAINERS[model][1].ran(*RUN, *MORE[model], "--out-dir", cli.new_folder(f"straight_{model}"), EMU_CHECK="1")


def test_every_step_is_told_once():
    """Results arrive a step late; none may be lost or told twice, also around validations, samples and saves. Neither
    sampling nor --checkpoint-every 0 costs the checkpoint at the end."""
    out = straight()
    assert steps_of(out) == [*range(1, STEPS + 1)] and logged_steps(cli.path("straight_gpt2")) == [*range(STEPS)]
    assert re.findall(r"^s:(\d+) tel:", log_of(cli.path("straight_gpt2")), re.M) == ["0", "2", "4", "5"]
    assert re.findall(r"^sample after (\d+) steps", out, re.M) == ["3", "5"]
    assert all(4.0 < loss < 7.5 for loss in losses(out)), out
    times = [float(ms) for ms in re.findall(r"^step .*\| (-?[\d.]+) ms \| \d+", out, re.M)]
    assert len(times) == STEPS and all(ms > 0.0 for ms in times), out
    assert checkpoints(cli.path("straight_gpt2")) == [STEPS]


@of_both
def test_like_the_cpu_trainer(model):
    """The same steps from the same seed: the same losses and first norm, within what the precision allows. AdamW
    forgives a gradient that is too large by a factor, so the losses do not show it."""
    cpu, gpu = TRAINERS[model][0].ran(*RUN, *MORE[model]), straight(model)
    check_close(losses(gpu), losses(cpu))
    check_close(val_losses(gpu), val_losses(cpu))
    limit = 1e-5 if precision() == "fp32" else 1e-2
    assert abs(norms(cpu)[0] - norms(gpu)[0]) <= limit * norms(cpu)[0] + 1e-4, "the last digit of a norm is 1e-4"


@of_both
def test_files_are_exchanged(model):
    """A checkpoint of one trainer is a model for the other, and a run to go on with when the change is allowed."""
    cpu, gpu = TRAINERS[model]
    evaluate = ["--steps", 0, "-b", 2, "-t", 16, "-m", 0, "-s", 0, "-j", cli.path("a_val.bin")]
    folders = {cpu: cli.new_folder("from_cpu"), gpu: cli.new_folder("from_gpu")}
    for trainer, folder in folders.items():
        trainer.ran(*RUN, "--steps", 2, *MORE[model], "-o", folder)
        want, got = (val_losses(reader.ran("--init", folder, *evaluate)) for reader in (cpu, gpu))
        check_close(got, want, 1e-4 if precision() == "fp32" else 1e-2)
    for maker, trainer in ((cpu, gpu), (gpu, cpu)):
        more = [*RUN, "--steps", 4, "-o", folders[maker], "--resume"]
        err = trainer.refused(*more, says=["--steps was 2, is 4", "--allow-changes"])
        assert ("computed-in was" in err) == (precision() == "bf16"), err
        trainer.ran(*more, "--allow-changes")
        assert logged_steps(folders[maker]) == [0, 1, 2, 3]


MUON_RUN = [*RUN, "--optimizer", "muon", "--muon-warmup", 3, "--steps", 3, "--val-every", 0, "--sample-every", 0]


@pytest.mark.long
def test_muon():
    """The CPU trainer's losses, and with all checks."""
    check_close(losses(ran(*MUON_RUN, EMU_CHECK="1")), losses(CPU.ran(*MUON_RUN)))


@pytest.mark.parametrize("options", ([], ["--fp8"]))
def test_loss_that_is_no_number(options):
    """fc overflows in layer 1: the run ends before an update, and says where it began. In 8 bits the scale of its GELU
    is no number either. 8 bits hold what is a power of two."""
    if options and precision() == "fp32":
        pytest.skip("--fp8 is for bf16")
    config = cli.config(C=32, maxT=24, L=2)
    params = cli.make_params(config)
    for name, value in (("ln2b", 8.0), ("fcw", 2.0**126)):
        half = len(params[name]) // 2
        params[name][half:] = cli.array.array("f", [value] * half)
    cli.shard("b_train.bin", cli.random_tokens(500, 257))
    folder = cli.new_folder("overflow")
    refused("-e", cli.model("overflowing.bin", config, params), "-i", cli.path("b_train.bin"), "-b", 2, "-t", 16, "-x",
            5, "-o", folder, *QUIET, *options,
            says=["step 1: the loss is", "first found in activation fc of layer 1", "nothing was saved"])
    assert checkpoints(folder) == []


def test_models_it_cannot_compute():
    for changes, says in ((["--channels", 36, "--heads", 2], ["--channels and --heads: 36 channels", "multiple of 8"]),
                          (["--channels", 512, "--heads", 1], ["heads of 512 channels", "256"]),
                          (["-pn", 2], ["--num-processes is 2", "mpirun -np 2"]),
                          (["-w", 0] if precision() == "fp32" else ["-f", 0], ["PRECISION="])):
        refused(*RUN, *changes, says=says)


@only_emulated
def test_no_gpu():
    """None, one with an old driver or little memory, and one on which a multiply fails."""
    refused(*RUN, EMU_NO_GPU="1", says=["no GPU", "nvidia-smi"])
    refused(*RUN, EMU_DRIVER_VERSION="11080", says=["driver is too old: it supports CUDA 11.8, this program was built"])
    refused(*RUN, EMU_MEMORY="1", says=["memory plan: needs ", " of GPU memory, 1.00 MiB of 1.00 MiB are free"])
    err = cli.finish(GPU.start(*RUN, EMU_CUBLASLT_FAULT="execution"), 1)[1]  # of a multiply
    assert re.search("failed: .* memory may be short: .*--batch-size", err) and len(err.splitlines()) == 1, err


@of_both
def test_generation(model):
    """--steps 0 with nothing but a model: a sample; likeliest tokens are the CPU trainer's in fp32."""
    straight(model)
    common = ["--init", cli.path(f"straight_{model}"), "--steps", 0, "-g", 12, "--temperature", 0]
    cpu, gpu = (cli.sample_of(trainer.ran(*common)) for trainer in TRAINERS[model])
    assert len(gpu.split()) == 12, gpu
    if precision() == "fp32":
        assert gpu == cpu, (gpu, cpu)
    assert cli.sample_of(TRAINERS[model][1].ran(*common)) == gpu


# ---- Options of its own ----

SMALL = ["-i", cli.text_file(), "--layers", 2, "--heads", 2, "--channels", 16, "--context", 16, "-t", 16, "-l", "1e-2"]
SHORT = [*SMALL, *QUIET, "-b", 3, "-x", 4]  # B*T = 48: no multiple of any block
# What the mean of losses of rounded logits may be off: half the distance of neighbouring bf16 numbers.
ROUNDING = 2**-8


def test_other_kernels_for_the_same_function():
    """A fused GELU, and a head in parts, whose logits' gradients are rounded alone."""
    plain = losses(ran(*SHORT))
    for level in (1, 2):
        check_close(losses(ran(*SHORT, "-ge", level, EMU_CHECK="1")), plain, ROUNDING)
    run = [*SMALL, "-b", 3, "-d", 96, "-x", 3, "-v", 2, "-m", 2, "-s", 0]
    whole, parts = (ran(*run, *more, EMU_CHECK="1") for more in ([], ["--head-rows", 10]))
    check_close(losses(parts), losses(whole), ROUNDING)
    check_close(val_losses(parts), val_losses(whole), ROUNDING)


# ---- HellaSwag and MMLU. During a run: test_llama.py ----

COUNT = 8


@functools.lru_cache(None)
def right_answers():
    """The model's file, and questions with the answers of the independent computation as labels. The best is further
    ahead than bf16 rounds: of losses around 4 by 2^-9 a value, some tens of values in a row."""
    params = cli.make_params(evalfiles.CONFIG, deviation=0.3)
    return (cli.model("gpu_answers.bin", evalfiles.CONFIG, params),
            questions(evalfiles.CONFIG, params, COUNT, 24, margin=0.2))


def asked(examples, *more):
    return ["--init", right_answers()[0], "--steps", 0, "--sample-every", 0, "-h", 1, "--hellaswag-data",
            eval_file("gpu_val.bin", examples), *more]


def test_answers_of_an_independent_computation():
    """On one rank, once with all checks of the emulator, however the sequences are packed; one that is cut, too."""
    examples = right_answers()[1]
    for shift, correct, batch, length in ((lambda i: 0, COUNT, 4, 24), (lambda i: i % 4 == 0, COUNT * 3 // 4, 25, 1)):
        assert results(ran(*asked(relabelled(examples, shift), "-b", batch, "-t", length))) == [(0, correct, COUNT)]
    assert results(ran(*asked(examples[:3], "-b", 5, "-t", 24), EMU_CHECK="1")) == [(0, 3, 3)]
    params = cli.make_params(evalfiles.CONFIG, deviation=0.3)
    out = ran(*asked(questions(evalfiles.CONFIG, params, 4, 24, longest=40, margin=0.2), "-b", 3, "-t", 3))
    assert results(out) == [(0, 4, 4)] and "lose the beginning of their context" in out, out


def test_answers_of_several_ranks():
    """With and without sharding; batches that no number of ranks divides. The bits of a loss do not depend on the rank
    either: completions that are the same are equal, and the first is the answer. Ranks without a batch of their own
    wait for the others, whose parameters are also theirs."""
    examples = right_answers()[1]
    for count, stage, batch in ((2, 0, 3), (3, 3, 4), (4, 2, 5)):
        out = ranks.ran(count, *asked(relabelled(examples, lambda i: i % 4 == 1), "-b", batch, "-t", 24, "-z", stage))
        assert results(out) == [(0, COUNT - COUNT // 4, COUNT)], (count, stage, out)
    equal = [(context, [completions[0]] * 4, 0) for context, completions, _ in examples]
    assert results(ranks.ran(3, *asked(equal, "-b", 2, "-t", 24))) == [(0, COUNT, COUNT)]
    mmlu = ["--mmlu", eval_file("gpu_few_mmlu.bin", relabelled(examples[1:3], lambda i: i))]
    for count, stage, check in ((4, 3, "0"), (3, 0, "1")):
        out = ranks.ran(count, *asked(examples[:1], *mmlu, "-b", 64, "-t", 24, "-z", stage), EMU_CHECK=check)
        assert results(out) == [(0, 1, 1)] and results(out, "MMLU") == [(0, 1, 2)], out
