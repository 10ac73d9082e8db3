"""What --plan tells about GPUs: the memory of one, what a step sends, whether the run fits. The documents' tables of
memory. No GPU, no NCCL and no MPI are needed. And --auto: what it chooses is what runs, on one rank and several. Its
rule, and that a choice fits to the byte: test_gpu_choices.c.
"""
import os
import re
import sys

import pytest

import cli
import evalfiles
import ranks
from cli import planned_bytes, weights_hash
from gpu_program import needs, only_emulated, ran, refused
from run_folder import record_of
from tools import ROOT

sys.path.insert(0, os.path.join(ROOT, "dev"))
import plan_table  # noqa: E402 (its folder had to be named first)

only_emulated()
D12 = ["-e", "d12", "-d", 16 * 1024]
RESERVE = 3 << 29  # of one GPU: a GiB, and half of one for CUDA's context


def plan(*arguments):
    return ran("--plan", "all", *arguments, CUDA_VISIBLE_DEVICES="")  # not for the GPU of this machine


def gib(bytes_):
    return repr(bytes_ / 2**30)


@pytest.mark.long
def test_documents_on_gpt2_and_llama():
    """All results in their tables are as computed anew."""
    needs("train_gpt2", "train_llama3", "train_gpt2emu", "train_llama3emu")
    tables = 0
    for document in plan_table.DOCUMENTS:
        text = document.read_text("utf-8")
        tables += len(re.findall(plan_table.TABLE, text, re.M))
        assert plan_table.computed_text(document) == text, f"{document}: python3 dev/plan_table.py"
    assert tables == 8, tables


def test_what_a_step_takes():
    """Of each GPU: its share of the FLOPs, and what it sends: parts of buckets, which are whole multiples of 64 values.
    One GPU shards nothing."""
    outside, block, ranks = (50304 + 1024 + 2) * 768, 12 * 768 * 768 + 13 * 768, 7
    values = (ranks - 1) * sum(64 * -(-bucket // (64 * ranks)) for bucket in (outside, *12 * (block,)))
    for stage, gradients, parameters in ((0, 8, 0), (1, 4, 2), (2, 4, 2)):
        out = plan("-e", "d12", "-b", 4, "-np", ranks, "-z", stage)
        assert f"\na step      {797815296 * 4 * 1024:.4g} FLOPs on each GPU\n" in out, out
        sent = f"{gradients * values} bytes of gradients, {parameters * values} of parameters, sent by each GPU\n"
        assert sent in out, (stage, sent, out)
        cli.check_memory_sum(out)
    assert "sent by each" not in plan("-e", "d12", "-b", 4, "-z", 3) and "FLOPs" not in plan("-e", "d12", "-x", 0)


def test_what_a_step_of_llama_takes():
    needs("train_llama3emu")
    weights, scores = 30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536) + 49152 * 576, 30 * 576 * 2048
    out = plan_table.predict.plan("-e smollm2:135M -b 4 -t 2048")
    assert f"\na step      {6 * (weights + scores) * 4 * 2048:.4g} FLOPs on each GPU\n" in out, out


def test_fits_to_the_byte():
    one = [*D12, "-b", 4, "-r", 1]
    for run, nccl in ((one, 0), ([*one, "-np", 2], 2 << 30)):
        taken = planned_bytes(plan(*run))
        for less, says in ((0, "yes, "), (1, "no, 1 B are missing: "), (3 << 20, "no, 3.00 MiB are missing: ")):
            out = plan(*run, "--gpu-memory", gib(taken + RESERVE + nccl - less))
            assert f"\nfits        {says}" in out, (less, out)


def test_plans_for_the_gpu_here():
    """If its name is known: for its memory, but for what --gpu-memory says; else for a card of 80 GB."""
    l4 = {"EMU_NAME": "NVIDIA L4", "EMU_MEMORY": "23034"}
    for more, environment, memory in (([], l4, "22.49 GiB"), (["--gpu-memory", 8], l4, "8.00 GiB"),
                                      ([], {}, "79.00 GiB"), ([], dict(l4, EMU_NO_GPU="1"), "79.00 GiB")):
        out = ran("--plan", "-e", "d12", "-b", 4, *more, **environment)
        assert re.search(rf"^fits  .* \({memory} less an assumed 1.50 GiB", out, re.M), (more, environment, out)


# ---- --auto ----

SEQUENCES = 8  # of a step
RUN = ["-i", cli.text_file(), "--layers", 2, "--heads", 2, "--channels", 16, "--context", 16, "-t", 16,
       "-d", SEQUENCES * 16, "-x", 2, "-l", "1e-2", *cli.QUIET]


def test_auto_refuses():
    for arguments, says in ((["-b", 4, "-r", 1], "both are given"),
                            (["-b", 4, "--gpu-memory", 1], "nothing fits: --batch-size 4 --recompute 3")):
        refused("--plan", "-e", "d12", "--auto", *arguments, says=[says])


def chosen(out):
    return tuple(map(int, re.search(r"^auto +--batch-size (\d+) --recompute (\d): ", out, re.M).groups()))


def planned(*arguments):
    """For a GPU as small as the emulator's."""
    return planned_bytes(ran(*arguments, "--plan", "all", "--gpu-memory", 4))


@pytest.mark.long
def test_what_auto_chooses_is_what_runs():
    """The same bits as with the options written out, the questions of an evaluation in the same batches; run.jsonl has
    the options that were used."""
    folder = cli.new_folder("auto")
    questions = [([1, 2, 3 + i], [[4] * (1 + i % 7), [5, 6]], 0) for i in range(3)]
    run = [*RUN[:-4], "-v", 2, "-s", 0, "--hellaswag", "--hellaswag-data",
           evalfiles.eval_file("auto_val.bin", questions)]
    small = ["--gpu-memory", gib(planned(*run, "-b", 4, "-r", 3) + (1 << 30))]  # for 4 sequences at any level
    for more in ([], small, [*small, "-r", 3]):
        out = ran(*run, "--auto", *more, "-o", folder, "--overwrite")
        B, level = chosen(out)
        want = ran(*run, "-b", B, "-r", level)
        assert (B, level) == ((4, 3) if more else (SEQUENCES, 0)), out
        assert weights_hash(want) == weights_hash(out), (want, out)
        for line in ("batch", "memory", "HellaSwag", "step .*HellaSwag"):
            assert re.findall(rf"^{line} .*$", out, re.M) == re.findall(rf"^{line} .*$", want, re.M), (line, want, out)
        options = record_of(folder)["options"]
        assert (options["batch-size"], options["recompute"], options["auto"]) == (str(B), str(level), "1"), options


@pytest.mark.long
def test_ranks_choose_alike():
    """By the GPU that has the least memory free, and as one: none is left waiting for the others."""
    run = [*RUN[:4], "--heads", 2, "--channels", 64, "--context", 64, "-t", 64, "-d", 512, "-x", 1, *cli.QUIET]
    most, least = (planned(*run, "-b", b, "-r", r, "-np", 2) for b, r in ((4, 0), (1, 3)))

    def memory(bytes_):  # of the GPU of rank 1, in MiB, so that fewer are left for the plan
        return {1: {"environment": {"EMU_MEMORY": str(3072 + (bytes_ - 1 >> 20))}}}

    out = ranks.ran(2, *run, "--auto", only=memory(most))
    B, level = chosen(out)
    assert planned(*run, "-b", B, "-r", level, "-np", 2) <= (most - 1 >> 20) << 20, (most, out)
    assert weights_hash(ranks.ran(2, *run, "-b", B, "-r", level)) == weights_hash(out), out
    ranks.refused(2, *run, "--auto", only=memory(least), says=["nothing fits: --batch-size 1 --recompute 3"])
