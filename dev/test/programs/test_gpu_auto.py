"""Runs with --auto: what it chooses is what runs, on one rank and several, and a run goes on with another choice.
./train_gpt2emu (make train_gpt2emu). What --auto says without a GPU: test_gpu_plan.py.
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


def test_goes_on_with_another_choice():
    """On a GPU with less memory. A step has the same sequences as before, so nothing need be allowed."""
    whole = cli.new_folder("whole")
    straight = single(*RUN, "--auto", "-n", 1, "-o", whole)
    assert chosen(straight) == (SEQUENCES, 0), straight
    parts = cli.stopped_after(1, whole)
    out = single(*RUN, "--auto", "--gpu-memory", room_for_4(*RUN), "-n", 1, "-o", parts, "--resume")
    B, level = chosen(out)
    assert 1 < B < SEQUENCES, out
    want, got = cli.losses(straight)[1:], cli.losses(out)
    assert len(got) == 1 and all(abs(a - b) <= 2**-8 * a for a, b in zip(want, got)), (want, got)
    found = record_of(parts)
    assert (found["options"]["batch-size"], found["options"]["recompute"]) == (str(B), str(level)), found
    assert [start["step"] for start in found["starts"]] == [0, 1], found


@pytest.mark.long
def test_lowest_level_that_fits():
    """Without --auto and -r, said and recorded. Where none fits, the last one says what is missing."""
    run, folder = [*RUN, "-b", 4], cli.new_folder("level")
    for level in (1, 3):
        memory = repr((planned(*run, "-r", level) + RESERVE) / 2**30)
        out = single(*run, "--gpu-memory", memory, "-o", folder, "--overwrite")
        assert re.search(rf"^auto +--recompute {level}: fits into ", out, re.M), out
        assert record_of(folder)["options"]["recompute"] == str(level), (level, out)
    assert re.search("^auto +--recompute 0: ", single(*run), re.M)
    gpu_program.refused(*run, "--gpu-memory", 0.01, says=["--gpu-memory: nothing fits: --batch-size 4 --recompute 3",
                                                          "lower --batch-size, use more GPUs"])
    need = f"memory plan: needs {planned(*run, '-r', 3) / 2**20:.2f} MiB of GPU memory, 1.00 MiB of 1.00 MiB are free"
    gpu_program.refused(*run, says=[need, "--batch-size", "--plan"], out_says=["memory "], EMU_MEMORY="1")


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
