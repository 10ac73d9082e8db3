"""What --plan tells about GPUs: the memory of one, what a step sends, whether the run fits, and what --auto refuses.
The documents' tables of memory. No GPU, no NCCL and no MPI are needed."""
import os
import re
import sys

import pytest

import cli
from cli import planned_bytes
from gpu_program import only_emulated, ran, refused
from tools import ROOT, text_of

sys.path.insert(0, os.path.join(ROOT, "dev"))
import plan_table  # noqa: E402 (its folder had to be named first)

D12 = ["-e", "d12", "-d", 16 * 1024]
RESERVE = 3 << 29  # of one GPU: a GiB, and half of one for CUDA's context


def plan(*arguments):
    return ran("--plan", "all", *arguments, CUDA_VISIBLE_DEVICES="")  # not for the GPU of this machine


def gib(bytes_):
    return repr(bytes_ / 2**30)


@pytest.mark.long
def test_documents_have_these_tables():
    """Each row that plan_table.py finds is as computed anew. README has some of the sizes."""
    for name, first, _ in plan_table.TABLES:
        text = text_of(f"doc/{name}.md")
        assert plan_table.computed(name) == text, f"doc/{name}.md: python3 dev/plan_table.py"
        assert len(re.findall(rf"^\| {first} \| [^-]", text, re.M)) >= 4, first
    sizes = re.findall(r"^\| `\d+M`, `d\d+`.*", text_of("README.md"), re.M)
    assert sizes and set(sizes) <= set(text_of("doc/usage.md").split("\n")), sizes


def test_what_a_step_takes():
    """Of each GPU: its share of the FLOPs, and what it sends. One GPU shards nothing."""
    for ranks in (2, 8):
        for stage in range(4):
            out = plan("-e", "d12", "-b", 4, "-np", ranks, "-z", stage)
            assert f"\na step      {797815296 * 4 * 1024:.4g} FLOPs on each GPU\n" in out, out
            sent = re.search(r"^ +(\d+) bytes of gradients, (\d+) of parameters, sent by each GPU$", out, re.M)
            assert (int(sent[2]) == 0) == (stage == 0) and int(sent[1]) > 0, (stage, out)
            cli.check_memory_sum(out)
    outs = [plan("-e", "d12", "-b", 4, "-z", stage) for stage in range(4)]
    assert len(set(outs)) == 1 and "sent by each" not in outs[0], outs
    assert "FLOPs" not in plan("-e", "d12", "-x", 0)


def test_short_plan():
    """Without "all" it has no buffers."""
    short = ran("--plan", *D12, "-b", 4, CUDA_VISIBLE_DEVICES="")
    assert not re.search(r"^(buffer|params|total|residual) ", short, re.M) and len(short.splitlines()) <= 15, short
    assert short.splitlines()[-1].startswith("fits        yes, "), short
    assert short.splitlines()[-2:] == plan(*D12, "-b", 4).splitlines()[-2:], short


def test_fits_to_the_byte():
    taken = planned_bytes(plan(*D12, "-b", 4, "-r", 1))
    for less, says in ((0, "yes, "), (1, "no, 1 B are missing: "), (3 << 20, "no, 3.00 MiB are missing: ")):
        out = plan(*D12, "-b", 4, "-r", 1, "--gpu-memory", gib(taken + RESERVE - less))
        assert f"\nfits        {says}" in out, (less, out)
    ranks = planned_bytes(plan("-e", "d12", "-b", 4, "-r", 1, "-np", 2))  # two GiB more for NCCL
    for less, says in ((0, "yes, "), (1, "no, 1 B are missing: ")):
        out = plan("-e", "d12", "-b", 4, "-r", 1, "-np", 2, "--gpu-memory", gib(ranks + RESERVE + (2 << 30) - less))
        assert f"\nfits        {says}" in out, (less, out)


def test_plans_for_the_gpu_here():
    """If its name is known: for its memory, but for what --gpu-memory says; else for a card of 80 GB."""
    only_emulated()
    l4 = {"EMU_NAME": "NVIDIA L4", "EMU_MEMORY": "23034"}
    for more, environment, memory in (([], l4, "22.49 GiB"), (["--gpu-memory", 8], l4, "8.00 GiB"),
                                      ([], {}, "79.00 GiB"), ([], dict(l4, EMU_NO_GPU="1"), "79.00 GiB")):
        out = ran("--plan", "-e", "d12", "-b", 4, *more, **environment)
        assert re.search(rf"^fits  .* \({memory} less an assumed 1.50 GiB", out, re.M), (more, environment, out)


# ---- --auto ----


def test_auto_refuses():
    for arguments, says in ((["--auto", "-b", 4, "-r", 1], "both are given"),
                            (["--auto", "-d", 1000], "is not a multiple of B x T = 1024"),
                            (["--auto", "-b", 4, "--gpu-memory", 1], "nothing fits: --batch-size 4 --recompute 3")):
        refused("--plan", "-e", "d12", *arguments, says=[says])
