"""Runs with --auto: what it chooses is what runs, on one rank and several. ./train_gpt2emu (make train_gpt2emu).
The rule, and that a choice fits to the byte: test_gpu_choices.c. What --auto says without a GPU: test_gpu_plan.py.
"""
import re

import pytest

import cli
import evalfiles
import gpu_program
from cli import planned_bytes
from gpu_program import ran as single
from ranks import ran, refused
from run_folder import record_of

gpu_program.only_emulated()
SEQUENCES = 8  # of a step
RUN = ["-i", cli.text_file(), "--layers", 2, "--heads", 2, "--channels", 16, "--context", 16, "-t", 16,
       "-d", SEQUENCES * 16, "-x", 2, "-l", "1e-2", *cli.QUIET]
RESERVE = 1 << 30


def chosen(out):
    return tuple(map(int, re.search(r"^auto +--batch-size (\d+) --recompute (\d): ", out, re.M).groups()))


def planned(*arguments):
    """For a GPU as small as the emulator's."""
    return planned_bytes(single(*arguments, "--plan", "all", "--gpu-memory", 4))


def room_for_4(*run):
    """--gpu-memory with which at most 4 sequences fit at any level."""
    return repr((planned(*run, "-b", 4, "-r", 3) + RESERVE) / 2**30)


@pytest.mark.long
def test_what_it_chooses_is_what_runs():
    """The same bits as with the options written out, the questions of an evaluation in the same batches; run.jsonl has
    the options that were used."""
    folder = cli.new_folder("auto")
    questions = [([1, 2, 3 + i], [[4] * (1 + i % 7), [5, 6]], 0) for i in range(3)]
    name = evalfiles.eval_file("auto_val.bin", questions)
    run = [*RUN[:-4], "-v", 2, "-s", 0, "--hellaswag", "--hellaswag-data", name]
    for more in ([], ["--gpu-memory", room_for_4(*run)], ["--gpu-memory", room_for_4(*run), "-r", 3]):
        out = single(*run, "--auto", *more, "-o", folder, "--overwrite")
        B, level = chosen(out)
        want = single(*run, "-b", B, "-r", level)
        assert (B, level) == ((4, 3) if more else (SEQUENCES, 0)), out
        assert cli.weights_hash(want) == cli.weights_hash(out), (want, out)
        for line in ("batch", "memory", "HellaSwag", "step .*HellaSwag"):
            assert re.findall(rf"^{line} .*$", out, re.M) == re.findall(rf"^{line} .*$", want, re.M), (line, want, out)
        assert f"batch       {B} sequences x 16 tokens x {SEQUENCES // B} micro-batches" in out, out
        options = record_of(folder)["options"]
        assert (options["batch-size"], options["recompute"], options["auto"]) == (str(B), str(level), "1"), options


@pytest.mark.long
def test_ranks_choose_alike():
    """By the GPU that has the least memory free, and as one: none is left waiting for the others."""
    run = [*RUN[:4], "--heads", 2, "--channels", 64, "--context", 64, "-t", 64, "-d", 512, "-x", 1, *cli.QUIET]
    most, least = (planned(*run, "-b", b, "-r", r, "-np", 2) for b, r in ((4, 0), (1, 3)))

    def memory(bytes_):  # of the GPU of rank 1, in MiB, so that fewer are left for the plan
        return {1: {"environment": {"EMU_MEMORY": str(3072 + (bytes_ - 1 >> 20))}}}

    out = ran(2, *run, "--auto", only=memory(most))
    B, level = chosen(out)
    assert planned(*run, "-b", B, "-r", level, "-np", 2) <= (most - 1 >> 20) << 20, (most, out)
    assert cli.weights_hash(ran(2, *run, "-b", B, "-r", level)) == cli.weights_hash(out), out
    deep = [*run[:3], 16, *run[4:], "-b", 4]
    out = ran(2, *deep, only=memory(planned(*deep, "-r", 0, "-np", 2)))
    assert re.search("^auto +--recompute 1: ", out, re.M), out
    assert cli.weights_hash(ran(2, *deep, "-r", 0)) == cli.weights_hash(out), out
    refused(2, *run, "--auto", only=memory(least), says=["nothing fits: --batch-size 1 --recompute 3"])
