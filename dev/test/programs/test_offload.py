"""--offload: what waits in the host's memory changes no bit of a run."""
import functools
import itertools
import os
import re

import pytest

import cli
import grids
from cli import steps_of, stopped_after, weights_hash
from gpu_program import GPU, PROGRAM
from grids import GPT2, LLAMA, MUON, UNTIED, T, name_of, options

KINDS = ["optimizer", "master", "gradients", "residuals", "parameters"]
STAGE = dict(zip(KINDS, (1, 1, 2, 0, 3)))  # the least on several ranks
STEPS = 3


ran_offload = functools.partial(grids.ran, PROGRAM)


def run_of(model, muon, *more):
    """Two micro-batches or more on each rank, and a validation between two steps."""
    return options(model, *(MUON if muon else []), "--total-batch", 8 * T, "--val-every", 2, "--steps", STEPS, *more)


REFERENCES = {}


def has_equal_bits(model, muon, count, stage, offload, *more):
    key = id(model), muon, count, stage, more
    run = run_of(model, muon, "-z", stage, *more)
    if key not in REFERENCES:
        REFERENCES[key] = ran_offload(model, count, *run)
    out, want = ran_offload(model, count, *run, "--offload", offload, EMU_CHECK="1"), REFERENCES[key]
    assert f"\noffload     {offload}: " in out or offload == "all", out
    assert cli.losses(out) == cli.losses(want) and cli.val_losses(out) == cli.val_losses(want), (out, want)
    assert weights_hash(out) == weights_hash(want), (out, want)


def cases():
    """Each kind, pairs and all on one GPU; on 2 in each stage what it is the first to allow, and all; all on 4. Models
    and optimizers take turns."""
    turn = itertools.cycle(itertools.product((GPT2, UNTIED, LLAMA), (False, True)))
    pairs = [",".join(KINDS[k] for k in sorted((i, (i + 2) % 5))) for i in range(5)]
    for kinds in (*KINDS, *pairs, "all"):
        yield (*next(turn), 1, 0, kinds)
    for stage in range(4):
        for kinds in (*(kind for kind in KINDS if STAGE[kind] == stage), "all"):
            yield (*next(turn), 2, stage, kinds)
        yield (*next(turn), 4, stage, "all")


ALL = list(cases())
SOME = [(GPT2, True, 1, 0, "all"), (UNTIED, True, 2, 3, "all"), (LLAMA, False, 2, 2, "all")]
MORE = [*ALL, (UNTIED, False, 1, 0, "all", "--recompute", 3), (GPT2, False, 2, 1, "optimizer,master"),
        (GPT2, False, 1, 0, "all", "--fp8", 1, "--channels", 64), (GPT2, False, 4, 2, "all", "--tp", 2),
        (GPT2, False, 2, 0, "all", "--tp", 2), (LLAMA, True, 4, 3, "all", "--tp", 2, "--cp", 2),
        (UNTIED, False, 4, 1, "optimizer,master", "--pp", 2), (GPT2, True, 1, 0, "all", "-w", 0),
        (GPT2, False, 1, 0, "all", "--recompute", 2)]


@pytest.mark.parametrize("case", [*SOME, *(pytest.param(case, marks=pytest.mark.long) for case in MORE)], ids=name_of)
def test_equal_bits(case):
    has_equal_bits(*case)


# ---- Memory and the bus ----


def numbers(pattern, out):
    return [tuple(int(part) for part in found if part.isdigit()) for found in re.findall(pattern, out, re.M)]


BUS = r"^bus +(\d+) bytes to each GPU, (\d+) from it$"
PLANS = [(GPT2, 1, "--offload", "all"), (UNTIED, 1, "--offload", "all", *MUON, "--moments", "bf16"),
         (UNTIED, 2, "--offload", "all", "-z", 3), (LLAMA, 2, "--offload", "optimizer,gradients", "-z", 2, *MUON),
         (GPT2, 4, "--offload", "all", "-z", 3, "--tp", 2), (GPT2, 1, "--offload", "master,parameters")]
LONG_PLANS = [pytest.param(case, marks=pytest.mark.long) for case in PLANS[1:]]


@pytest.mark.parametrize("case", PLANS[:1] + LONG_PLANS,
                         ids=lambda case: name_of((case[0], False, *case[1:])))
def test_plan_is_what_happens(case):
    """Memory, and what passes between a GPU and its host, and between GPUs. A validation would move more."""
    model, count, *more = case
    run = run_of(model, False, *more, "--val-every", 0)
    out = ran_offload(model, count, *run)
    plan = grids.planner(PROGRAM, model).ran(*run, "--num-processes", count, "--plan", "--gpu-memory", 8)
    for pattern in (BUS, r"^(?:sent| ) +(\d+) bytes of gradients, (\d+) of parameters", r"(\d+) bytes for (tensor)"):
        want = [tuple(STEPS * number for number in row) for row in numbers(pattern, plan)]
        assert numbers(pattern, out) == want and (want or pattern != BUS), (pattern, plan, out)
    for line in (r"^memory +.* on the GPU.*\n += .*$", r"^offload .*$"):
        assert re.search(line, out, re.M).group() == re.search(line, plan, re.M).group(), (plan, out)


def test_llama_leaves_to_the_host_what_does_not_fit():
    """In one order, until it fits, and no more than must be."""
    for memory, want in ((79, ",".join(KINDS[:2])), (23, ",".join(KINDS))):
        plan = grids.planner(PROGRAM, LLAMA).ran("-e", "llama:8B", "-t", 2048, "-d", 2**19, "-r", 3, "--auto", "--plan",
                                                 "--gpu-memory", memory)
        assert re.search(rf"^auto +--batch-size \d+ --recompute 3 --offload {want}: fits into", plan, re.M), plan
        assert f"\noffload     {want}: " in plan and "\nfits        yes, " in plan, plan


# ---- Refusals ----


def test_refusals():
    gradients = ["--offload", "gradients", "-np", 2, "-z", 1]
    for more, says in ((["--offload", "moments"], ["'moments' is none of optimizer,master,gradients"]),
                       (gradients, ["--offload gradients: needs", "--zero-stage 2 or 3"]),
                       (["--offload", "optimizer", "-np", 2], ["--offload optimizer: needs", "--zero-stage 1 or more"]),
                       (["--offload", "residuals", "-np", 2, "--pp", 2], ["--offload residuals: needs a run", "--pp"]),
                       (["--offload", "master", "-w", 0], ["--offload master: needs fp32 master weights"]),
                       (["--offload", "optimizer", "--steps", 0], ["--offload optimizer: needs a run that trains"])):
        grids.planner(PROGRAM).refused("--plan", *more, says=says)


def test_host_memory_is_short():
    """Refused when it would be taken, in one line."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    run = run_of(GPT2, False, "--layers", 1000, "--channels", 1600, "--heads", 25, "--offload", "all", "--head-rows", 8)
    if installed > 500 << 30:
        pytest.skip("this machine has the memory")
    cli.Trainer(PROGRAM).refused(*run, says=["needs 5", "GiB of pinned host memory for each of 1 GPUs"])


# ---- Resumed ----


@pytest.mark.long
@pytest.mark.parametrize("more", ([], MUON), ids=("adamw", "muon"))
def test_resumed_with_other_kinds(more):
    """Checkpoints do not know of --offload: a run goes on with less of it, or more."""
    run = [*run_of(UNTIED, False, *more), "--checkpoint-every", 1, "--out-dir"]
    for kinds, then in (("all", "optimizer,gradients"), ("optimizer,master", "all")):
        folder = cli.new_folder("offload_whole")
        want = ran_offload(UNTIED, 1, *run, folder, "--offload", kinds)
        out = ran_offload(UNTIED, 1, *run, stopped_after(1, folder), "--resume", "--offload", then)
        assert steps_of(out) == [2, 3] and weights_hash(out) == weights_hash(want), (kinds, then)


# ---- A step that is refused ----


def test_a_refused_update_changes_nothing():
    """The parameters on the host are as they were: the search for the NaN finds it behind them."""
    run = run_of(GPT2, False, "--lr", 100, "--warmup", 0, "--weight-decay", 100, "--grad-clip", 0, "--adam-eps", 1e-8,
                 "--seq-len", 16, "--total-batch", 128, "--steps", 60)
    for offload in ([], ["--offload", "all"], ["--offload", "parameters"]):
        said = GPU.refused(*run, *offload, says=["first found in "])
        assert "in parameter" not in said, (offload, said)
