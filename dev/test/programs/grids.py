"""Small models, their trainers, and the options of their runs, for tests that compare these bit for bit."""
import os

import cli
import ranks

T, VOCAB = 8, 61
GPT2 = ["--layers", 3, "--heads", 4, "--channels", 32, "--context", 16]
LLAMA = ["--layers", 3, "--heads", 8, "--channels", 64, "--kv-heads", 4, "--context", 16, "--init", "llama:d2"]
UNTIED = ["--layers", 5, "--heads", 4, "--channels", 32, "--kv-heads", 2, "--context", 16, "--init", "llama:8B"]
MUON = ["--optimizer", "muon", "--muon-warmup", 3]
NAMES = {id(GPT2): "gpt2", id(LLAMA): "llama", id(UNTIED): "llama8"}
CLIP = 0.5  # less than the first step's norm


def name_of(case):
    """(model, whether Muon trains it, ranks, options): a name for pytest."""
    return "_".join([NAMES[id(case[0])], "muon" if case[1] else "adamw", *map(str, case[2:])])


def options(model, *more):
    for name, count, seed in (("g_train.bin", 1500, 1), ("g_val.bin", 5 * T + 1, 2)):
        if not os.path.exists(cli.path(name)):
            cli.shard(name, cli.random_tokens(count, VOCAB, seed))
    return ["--train-data", cli.path("g_train.bin"), "--val-data", cli.path("g_val.bin"), *model, "--vocab", VOCAB,
            "--seq-len", T, "--total-batch", 4 * T, "--batch-size", 1, "--lr", 3e-3, "--warmup", 2, "--adam-eps", 1e-4,
            "--weight-decay", 0.1, "--grad-clip", CLIP, "--val-every", 5, "--sample-every", 0, *more]


def program_of(model, program):
    """The trainer of a model that is built beside one for GPT-2."""
    return program if model is GPT2 else program.replace("train_gpt2", "train_llama3")


def ran(program, model, count, *words, **environment):
    return ranks.ran(count, *words, program=program_of(model, program), **environment)


def planner(program, model=GPT2):
    """A trainer that finds no GPU and only plans."""
    return cli.Trainer(program_of(model, program), EMU_NO_GPU="1")
