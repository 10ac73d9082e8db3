"""The options that the GPU trainer has for itself: ./train_gpt2emu (make train_gpt2emu; TRAIN_GPT2CU names another,
./train_gpt2cu where a GPU is). Its runs and files, and machines without a GPU: test_gpu_trainer.py. What it shares with
the CPU trainer: test_options.py.
"""
import re

import cli
import gpu_program
from cli import QUIET, losses, val_losses, weights_hash
from gpu_program import NAME, ran, refused

TEXT = cli.text_file()
SHAPE = ["-i", TEXT, "--layers", "2", "--heads", "2", "--channels", "16", "--context", "16", "-t", "16"]
RUN = [*SHAPE, *QUIET, "-b", "3", "-x", "4", "-l", "1e-2"]  # B*T = 48: no multiple of any block


def test_help_text():
    out = ran("--help", "all")
    for text in (f"Usage: {NAME} ", f"\nExample: {NAME} -i 'shards", "--recompute", "--gelu-fusion", "-ge", "GPU"):
        assert text in out, text
    assert set(re.findall(r"train_gpt2\w+", out)) == {NAME}
    assert re.match(rf"{NAME} .*\d", ran("--version"))


def test_options_of_several_processes():
    """What is missing is told at once (test_args.c has all); one process more or less is no other run."""
    refused(*RUN, "-pn", 2, says=["neither mpirun nor srun has started"])
    want = weights_hash(ran(*RUN))
    for options in (("-z", 3, "-pg", 1), ("-pi", "tcp", "-ps", "127.0.0.1"),
                    ("-pi", "fs", "-pf", cli.new_folder("ranks"))):
        assert weights_hash(ran(*RUN, "-pn", 1, *options)) == want, options


def close(got, want):
    """To what the mean of losses of rounded logits may be off: half the distance of neighbouring bf16 numbers."""
    assert len(got) == len(want) > 0, (got, want)
    assert all(abs(a - b) <= 2**-8 * b for a, b in zip(got, want)), (got, want)


def test_fused_gelu_is_the_same_function():
    plain = losses(ran(*RUN))
    for level in (1, 2):
        close(losses(ran(*RUN, "-ge", level, EMU_CHECK="1")), plain)


def test_head_in_parts():
    """The loss is that of all rows at once, to the rounding of the logits' gradients."""
    run = [*SHAPE, "-b", 3, "-d", 96, "-x", 3, "-l", "1e-2", "-v", 2, "-m", 2, "-s", 0]
    whole, parts = (ran(*run, *more, EMU_CHECK="1") for more in ([], ["--head-rows", 10]))
    close(losses(parts), losses(whole))
    close(val_losses(parts), val_losses(whole))


def test_remedy():
    """A multiply that fails says in one line what to do."""
    if gpu_program.EMULATED:
        process = gpu_program.GPU.start(*RUN, EMU_CUBLASLT_FAULT="execution")
        err = cli.finish(process, 1)[1]
        assert re.search("failed: .* memory may be short: .*--batch-size", err) and len(err.splitlines()) == 1, err


def test_llmc_command_line():
    """The flags of llm.c's scripts that mean something here."""
    out = ran(*SHAPE, "-b", 2, "-d", 64, "-r", 0, "-z", 1, "-c", "0.1", "-l", "0.0006", "-q", "0.0", "-u", 1, "-n", 0,
              "-v", 2, "-m", 2, "-s", 2, "-g", 4, "-h", 0, "-x", 2, "-ge", 1)
    assert len(losses(out)) == 2 and len(val_losses(out)) == 2 and cli.sample_of(out) is not None, out
