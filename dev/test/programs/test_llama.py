"""The trainers for Llama: sizes, refusals, files that they save as they were, questions. Beside each other and with the
checkpoints of each other: test_gpu_trainer.py. Numbers of transformers: test_llama3.c, test_llama3.cu."""
import functools
import os

import pytest

import cli
import evalfiles
import gpu_program
import ranks
from cli import LLAMA, new_folder, of_llama, weights_hash
from tools import ROOT

GPU = of_llama(gpu_program.GPU)
FIXTURES = os.path.join(ROOT, "dev", "test", "fixtures")
TEXT = ["-i", cli.text_file()]
SIZE = ["--layers", 2, "--heads", 4, "--kv-heads", 2, "--channels", 32, "--context", 16]
RUN = [*TEXT, *SIZE, "-t", 16, "-b", 2, "-x", 6, *cli.QUIET]


def fixture(name):
    return os.path.join(FIXTURES, "llama", f"{name}.bin")


@pytest.mark.parametrize("size, parameters", (("1B", 1235814400), ("3B", 3212749824), ("8B", 8030261248)))
def test_sizes(size, parameters):
    assert f"\nparameters  {parameters}, from the seed\n" in LLAMA.ran("-e", size, "--plan")


def test_refusals():
    for option, value, says in (("--kv-heads", 3, "3 heads of keys and values: choose --kv-heads that divide heads"),
                                ("--channels", 36, "4 heads of size 9, 2 heads of keys and values: rotary"),
                                ("--channels", 34, "34 channels cannot be divided among 4 heads")):
        for trainer in (LLAMA, GPU):
            trainer.refused(*RUN, option, value, says=[says])
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


@pytest.mark.parametrize("name", ("g4_untied_bias_hs16", "g3_tied_scaled"))
def test_saves_what_it_has_read(name):
    """With a learning rate of 0: the header, but for the tokenizer's hash, and each tensor, from the parts of two ranks
    too."""
    shard = cli.shard("few_train.bin", cli.random_tokens(200, 67))
    run = ["-e", fixture(name), "-i", shard, "-t", 16, "-b", 1, "-d", 32, "-x", 1, "--lr", 0, *cli.QUIET, "-o"]
    LLAMA.ran(*run, new_folder("saved_cpu"))
    ranks.ran(2, *run, new_folder("saved_gpu"), "-z", 3, program=GPU.program)
    want = cli.read(fixture(name))
    for folder in ("saved_cpu", "saved_gpu"):
        got = cli.read(os.path.join(folder, "model_00000001.bin"))
        assert got[:1016] == want[:1016] and got[1024:] == want[1024:], folder


def test_questions_longer_than_a_sequence():
    """They need more angles than a step. A run that asks them ends with the weights of one that does not, also on ranks
    that share the parameters."""
    shard, name = cli.shard("chain_train.bin", evalfiles.chain(2000, 1)), evalfiles.eval_file(
        "chain_val.bin", evalfiles.chain_questions(4))
    run = ["-i", shard, "--vocab", 61, *SIZE[:-1], 32, "-t", 8, "-b", 1, "-x", 4, "-v", 3, "-s", 0]
    two = functools.partial(ranks.ran, 2, "-z", 3, program=GPU.program)
    for ran in (LLAMA.ran, GPU.ran, two):
        out = ran(*run, "-h", 1, "--hellaswag-data", name, EMU_CHECK="1")
        assert [step for step, _, _ in evalfiles.results(out)] == [0, 3, 4], out
        assert weights_hash(out) == weights_hash(ran(*run)), out
