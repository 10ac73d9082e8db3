"""Grids of ranks: a run on any grid computes what one rank computes.

AdamW forgives a wrong factor, so gradients are compared, not only losses. After one step the first moment is a tenth of
the gradient, and a checkpoint holds it tensor by tensor. Its norm is --grad-clip, if the run's own norm is right.
"""
import functools
import os
import re

import numpy as np
import pytest

import cli
import formats
import grids
import ranks
from cli import logged_losses, steps_of, stopped_after, weights_hash
from evalfiles import eval_file, questions
from grids import GPT2, LLAMA, MUON, T, UNTIED, VOCAB, name_of
from tools import read

QUICK = "TEST_QUICK" in os.environ
FOLDER = "build/grid" if QUICK else "build/emu_fp32"
FP32 = os.path.abspath(os.environ.get("TRAIN_GPT2CU_FP32", f"{FOLDER}/train_gpt2emu"))
if not os.path.exists(FP32):
    pytest.skip(f"no {FP32} here", allow_module_level=True)

STEPS = 3 if QUICK else 5
TOLERANCE = {False: 1e-5, True: 1e-3}  # of losses; with Muon, which amplifies rounding


def options(model, *more):
    return grids.options(model, "--tf32", 0, "--steps", STEPS, *more)


ran_grid = functools.partial(grids.ran, FP32)


def moments(folder):
    """The first moments after a step, {tensor: values}, by the run's own table of tensors."""
    data = read(f"{folder}/model_{1:08}.bin")
    fields = np.frombuffer(data[:1024], np.int32)
    _, sections, _ = formats.read_state(f"{folder}/state_{1:08}.bin")
    found, at, values = {}, 0, np.frombuffer(sections["adam_m"], np.float32)
    for name, size in tensor_sizes(fields):
        found[name], at = values[at:at + size].astype(np.float64), at + size
    assert at == len(values)
    return found


def tensor_sizes(fields):
    """The tensors of a model, by the header of its file."""
    maxT, _, L, NH, C, Vp, variant = fields[2:9]
    if variant == 0:
        shapes = cli.tensor_shapes({"maxT": maxT, "L": L, "C": C, "Vp": Vp})
        return [(name, int(np.prod(shape))) for name, shape in shapes.items()]
    KV, HS, F, tied = fields[9:13]
    block = [("ln1w", C), ("qw", NH * HS * C), ("kw", KV * HS * C), ("vw", KV * HS * C), ("attprojw", C * NH * HS),
             ("ln2w", C), ("gatew", F * C), ("upw", F * C), ("fcprojw", C * F)]
    head = [] if tied else [("headw", Vp * C)]
    return [("wte", Vp * C), *((name, L * size) for name, size in block), ("lnfw", C), *head]


class Run:

    def __init__(self, model, count, *more):
        self.folder = cli.new_folder(f"grid_{abs(hash((str(model), count, more)))}")
        self.out = ran_grid(model, count, *options(model, *more, "--out-dir", self.folder, "--checkpoint-every", 1))
        self.losses, self.hash = logged_losses(self.folder), weights_hash(self.out)
        self.moments = moments(self.folder)


@functools.lru_cache(None)
def one_rank(name, muon):
    model = {"gpt2": GPT2, "llama": LLAMA, "llama8": UNTIED}[name]
    return Run(model, 1, *(MUON if muon else []))


def check_like_one_rank(model, muon, count, *grid):
    """Runs a grid, and compares it with one rank."""
    one, run = one_rank(grids.NAMES[id(model)], muon), Run(model, count, *(MUON if muon else []), *grid)
    for name, want in one.moments.items():
        off = np.linalg.norm(run.moments[name] - want) / np.linalg.norm(want)
        assert off <= 1e-5, f"{count} ranks {grid}: the gradient of {name} is off by {off:.1e} of its norm"
    norm = np.sqrt(sum(np.sum(values**2) for values in run.moments.values()))
    factor = np.sqrt(sum(np.sum(values**2) for values in one.moments.values())) / norm
    assert abs(factor - 1) <= 1e-6, f"{count} ranks {grid}: the norm is off by {factor - 1:.1e}"
    for step, (a, b) in enumerate(zip(one.losses, run.losses)):
        assert abs(a - b) <= TOLERANCE[muon] * a, f"{count} ranks {grid}: the loss of step {step}: {b}, expected {a}"
    assert len(run.losses) == len(one.losses) == STEPS


INTERLEAVED = ["--pp-schedule", "interleaved"]
# Each axis and each pair of axes, each stage, both models, both optimizers; and more of them in a long run.
GRIDS = [(GPT2, False, 2, "--tp", 2), (GPT2, True, 4, "--tp", 2, "-z", 1), (LLAMA, False, 8, "--tp", 4, "-z", 3),
         (GPT2, True, 2, "-z", 3), (UNTIED, True, 2, "-z", 1), (LLAMA, False, 4, "-z", 2),
         (UNTIED, False, 4, "--pp", 2, *INTERLEAVED), (LLAMA, False, 6, "--pp", 3, "-z", 2),
         (GPT2, False, 8, "--pp", 2, "--tp", 2, "-z", 3), (LLAMA, False, 4, "--cp", 2, "-z", 2),
         (GPT2, False, 4, "--cp", 2, "--pp", 2, "--recompute", 3)]
MORE = [(GPT2, True, 4, "-z", 3), (GPT2, True, 4, "-z", 1), (GPT2, False, 2, "-z", 0),
        (LLAMA, False, 8, "--cp", 2, "--pp", 2, "--tp", 2), (UNTIED, True, 4, "--pp", 2, *INTERLEAVED),
        (LLAMA, True, 4, "--cp", 2, "-z", 2), (LLAMA, True, 8, "--pp", 2, "--tp", 2, "-z", 0),
        (GPT2, False, 6, "--pp", 3, "-z", 0, "--pp-schedule", "afab"), (GPT2, False, 4, "--tp", 4, "--sp", 0),
        (GPT2, False, 2, "--cp", 2), (GPT2, True, 8, "--cp", 4, "-z", 3),
        (UNTIED, True, 8, "--tp", 2, "--pp", 2, *INTERLEAVED, "--sp", 0, "-z", 2),
        (UNTIED, False, 8, "--cp", 2, "--tp", 2, "--recompute", 3),
        (GPT2, False, 4, "--tp", 2, "--recompute", 2, "--gelu-fusion", 2)]


@pytest.mark.parametrize("case", [*GRIDS, *(pytest.param(case, marks=pytest.mark.long) for case in MORE)], ids=name_of)
def test_like_one_rank(case):
    check_like_one_rank(*case)


LONG_MUON = pytest.mark.parametrize("muon", (False, pytest.param(True, marks=pytest.mark.long)), ids=("adamw", "muon"))


@LONG_MUON
def test_llama_pipeline_has_equal_bits(muon):
    """Without a tied head, whose gradient has two parts: whatever the schedule."""
    more = MUON if muon else []
    for copies in (1, ) if QUICK else (1, 2):
        want = Run(UNTIED, copies, *more, "-z", 1)
        for stages, schedule in ((2, []), (3, ["--pp-schedule", "afab"]), (2, INTERLEAVED)):
            run = Run(UNTIED, copies * stages, *more, "--pp", stages, *schedule)
            assert run.hash == want.hash and run.losses == want.losses, (copies, stages, schedule, run.out)


# ---- Memory and traffic ----

SENT = r"(\d+) bytes (of gradients|of Muon's matrices|for tensor parallelism|of keys and values|to other stages)|" \
    r"(\d+) of parameters"


def sent(out, first):
    """What is sent: a list of (bytes, what) for each stage."""
    blocks = re.split(first, out, flags=re.M)[1:]
    return [[(int(a or c), what or "of parameters") for a, what, c in re.findall(SENT, block)] for block in blocks]


@pytest.mark.parametrize("case", [
    pytest.param((GPT2, 8, "--pp", 2, "--tp", 2, "-z", 3, *MUON), marks=pytest.mark.long),
    pytest.param((LLAMA, 8, "--cp", 2, "--tp", 2, "-z", 2, "--recompute", 3), marks=pytest.mark.long),
    (GPT2, 8, "--pp", 2, "--cp", 2, "--tp", 2, "-z", 0, "--sp", 0, "--gelu-fusion", 1, "--recompute", 2),
    (GPT2, 2, "-z", 3), *((GPT2, 2, "-z", stage, *MUON) for stage in (0, 1, 3))],
    ids=("gpt2_pp_tp", "llama_cp_tp", "gpt2_pp_cp_tp", "gpt2_z3", "muon_z0", "muon_z1", "muon_z3"))
def test_plan_is_what_happens(case):
    """Each stage sends in a step what --plan says, and rank 0 takes the memory. An evaluation would send more."""
    model, count, *more = case
    run = options(model, *more)
    run[run.index("--val-every") + 1] = 0
    out = ran_grid(model, count, *run)
    plan = grids.planner(FP32, model).ran(*run, "--plan", "--num-processes", count, "--gpu-memory", 8)
    stages = 2 if "--pp" in more else 1
    said = sent(plan, r"^stage .*\n" if stages > 1 else r"^a step .*\n")
    found = sent(out[out.index("\nsent "):].replace("\nby stage", "\nsent"), r"^sent")
    assert len(said) == len(found) == stages and all(said), (plan, out)
    for stage in range(stages):
        want = [(STEPS * number, what) for number, what in said[stage]]
        assert found[stage] == want, (stage, found[stage], want)
    memory = r"^memory +.* on the GPU.*\n += .*$"
    assert re.search(memory, out, re.M).group() == re.search(memory, plan, re.M).group(), (plan, out)


# ---- Evaluation ----


def test_evaluation():
    """The loss of a validation, the answers to questions and the text of a sample."""
    config = cli.config(maxT=24, V=VOCAB, Vp=128, L=4, NH=4, C=32)
    params = cli.make_params(config, deviation=0.2)
    model = cli.model("grid_evaluated.bin", config, params)
    data = cli.shard("grid_e_val.bin", cli.random_tokens(8 * 16 + 1, VOCAB))
    run = ["--init", model, "--steps", 0, "--val-data", data, "--seq-len", 16, "--batch-size", 3,
           "--sample-tokens", 3 if QUICK else 12, "--tf32", 0, "-h", 1, "--hellaswag-data",
           eval_file("grid_questions.bin", questions(config, params, 9, 24))]
    grids.planner(FP32).refused(*run, "--cp", 8, "-np", 8, "--plan", says=["--hellaswag: the ranks of --cp 8", "of 24"])
    results = []
    places = [(1, ), (3, "-z", 3), (2, "--tp", 2), (4, "--pp", 2, "-z", 3), (4, "--pp", 2, *INTERLEAVED),
              (2, "--cp", 2), (8, "--pp", 2, "--cp", 2, "--tp", 2, "--sp", 0)]
    for count, *grid in places[:4] if QUICK else places:
        out = ran_grid(GPT2, count, *run, *grid)
        results.append((cli.val_losses(out), re.search(r"^.*HellaSwag.*9.*$", out, re.M).group(), cli.sample_of(out)))
    assert results[1] == results[0], results  # copies of the whole model change no bit
    for grid in results[2:]:
        assert abs(grid[0][0] - results[0][0][0]) <= 2e-5 * results[0][0][0] and grid[1:] == results[0][1:], results


# ---- Checkpoints ----


@pytest.mark.long
@pytest.mark.parametrize("muon", (False, True), ids=("adamw", "muon"))
def test_resumed_on_other_grids(muon):
    """A run of dp 2 x pp 2 x tp 2 goes on as another grid, and any grid reads the state that it has written."""
    more, grid = [*(MUON if muon else []), "--total-batch", 8 * T], ["--pp", 2, "--tp", 2, "-z", 1]
    saved = Run(LLAMA, 8, *more, *grid)
    for count, *other in ((1, ), (8, "-z", 3), (4, "--tp", 4), (4, "--cp", 2, "--pp", 2, "-z", 2)):
        folder = stopped_after(2, saved.folder, "grid_stopped")
        out = ran_grid(LLAMA, count, *options(LLAMA, *more, *other, "--out-dir", folder, "--resume"))
        assert steps_of(out) == [*range(3, STEPS + 1)], out
        for a, b in zip(saved.losses, logged_losses(folder)):
            assert abs(a - b) <= TOLERANCE[muon] * a, (count, other, saved.losses, logged_losses(folder))
    folder = stopped_after(2, saved.folder, "grid_stopped")
    out = ran_grid(LLAMA, 8, *options(LLAMA, *more, *grid, "--out-dir", folder, "--resume"))
    assert weights_hash(out) == saved.hash


@LONG_MUON
def test_resumed_in_bf16(muon):
    """A resumed run rounds its weights as its last update did: by the number of an element in the whole model."""
    run, folder = options(GPT2, *(MUON if muon else []), "--pp", 2, "--tp", 2), cli.new_folder("grid_bf16")
    at = run.index("--tf32")
    del run[at:at + 2]  # it is for fp32
    saved = ranks.ran(4, *run, "--out-dir", folder, "--checkpoint-every", 1)
    out = ranks.ran(4, *run, "--out-dir", stopped_after(2, folder, "grid_stopped"), "--resume")
    assert steps_of(out) == [*range(3, STEPS + 1)] and weights_hash(out) == weights_hash(saved)


# ---- Faults ----


def test_a_rank_is_killed():
    """Whatever its place: the others end, and one line says which it was, and where in the grid of 8 ranks."""
    places = [(5, "pp 1, cp 0, tp 1"), (2, "pp 0, cp 1, tp 0")]
    run = options(GPT2, "--pp", 2, "--cp", 2, "--tp", 2, "--watchdog", 8, "--out-dir")
    for rank, place in places[:1] if QUICK else places:
        ranks.Ranks(8, *run, cli.new_folder("grid_fault"), program=FP32, EMU_NCCL_FAULT=f"die@{rank}:80").fail(
            [f"rank {rank} (", f"at dp 0, {place} ended without a word"], lost=rank)


def test_impossible_grids():
    """What of a run does not fit its grid is refused. (test_grid.c: what of a model does not.)"""
    for count, run, says in (
            (8, ["--pp", 4, *INTERLEAVED, "-d", 4 * 2 * 3 * 1024], "interleaved: 3 micro-batches are no multiple of 4"),
            (4, ["--cp", 2, "--tp", 2, "-t", 6], "--cp 2 and --tp 2 (--sp 1) cannot"),
            (4, ["--pp", 2, "--pp-chunks", 3], "--pp-chunks: needs --pp-schedule interleaved")):
        grids.planner(FP32).refused(*run, "--plan", "-np", count, says=[says])
