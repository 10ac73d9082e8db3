"""--attention and --deterministic: the GPU trainer with cuDNN's attention and with its own, in the emulator. Its cuDNN
is there with EMU_CUDNN=1, and has no engine with EMU_CUDNN=none. The graphs and their numbers: kernels_cudnn.cuh.

TRAIN_GPT2CU names the program (./train_gpt2emu).
"""
import os
import re

import pytest

import cli
import ranks
from cli import QUIET, losses, stopped_after, weights_hash
from gpu_program import only_emulated, ran, refused
from run_folder import record_of

only_emulated()
RUN = ["-i", cli.text_file(), "--layers", 1, "--heads", 2, "--channels", 16, "--context", 128, "-t", 128, "-b", 3, "-d",
       384, "-x", 2, "-l", "1e-2", *QUIET]
NO_CUDNN = "the emulator has a cuDNN only with EMU_CUDNN=1"
ROUNDING = 2.0**-8  # of a value to bf16
CUDNN = dict(EMU_CUDNN="1", XDG_CACHE_HOME=cli.path("cache"))
NO_ENGINE = dict(CUDNN, EMU_CUDNN="none")


def changed(name, value):
    run = list(RUN)
    run[run.index(name) + 1] = value
    return run


@pytest.mark.long
def test_near_to_our_own():
    """By default, where cuDNN is: other roundings, and the same bits in the same run and at every recompute level."""
    own, cudnn = (ran(*RUN, *more, EMU_CHECK="1", **CUDNN) for more in
                  (["--attention", "own"], ["--matmul-tune", 0]))
    assert "attention on plain cores" in own and "attention by cuDNN 9.19.0, heads" in cudnn, (own, cudnn)
    for a, b in zip(losses(own), losses(cudnn)):
        assert abs(a - b) <= ROUNDING * a, (losses(own), losses(cudnn))
    assert weights_hash(own) != weights_hash(cudnn)
    for options in (["--attention", "cudnn", "-r", 3], ["-r", 1, "--matmul-tune", 0]):
        assert weights_hash(ran(*RUN, *options, **CUDNN)) == weights_hash(cudnn), options
    assert weights_hash(ran(*RUN)) == weights_hash(own)


def test_without_a_plan():
    """auto goes on without cuDNN and says why; cudnn ends the run."""
    out = ran(*RUN, **NO_ENGINE)
    reason = "cuDNN 9.19.0 has no plan for attention's forward"
    assert re.search(rf"^attention +by our own kernels: {reason}", out, re.M), out
    own = ran(*RUN, "--attention", "own")
    assert weights_hash(out) == weights_hash(own)
    planned = [re.findall(r"^memory +(\S+ \S+) on the GPU", text, re.M) for text in (out, own)]
    assert planned[0][0] != planned[0][1] and planned[0][1:] == planned[1], planned
    cudnn = ["--attention", "cudnn"]
    refused(*RUN, *cudnn, says=["--attention cudnn: ", "it needs NVRTC of its CUDA release"], **NO_ENGINE)
    refused(*RUN, *cudnn, says=["--attention cudnn: ", NO_CUDNN])
    refused(*changed("--channels", 24), *cudnn, says=["heads of 12 channels, cuDNN takes multiples of 8"], **CUDNN)
    refused(*RUN[:-len(QUIET) - 4], "-x", 0, *cudnn, says=["--attention cudnn: needs --steps (-x) other than 0"],
            **CUDNN)


def test_odd_lengths_are_ours():
    """A T that is no multiple of 128 is left to our own kernels, and the run says so."""
    run = changed("-t", 100)
    run[run.index("-d") + 1] = 300
    reason = "sequences of 100 tokens, cuDNN is asked for multiples of 128 only"
    out = ran(*run, **CUDNN)
    assert re.search(rf"^ +not by cuDNN: {reason}$", out, re.M) and "attention on plain cores" in out, out
    assert weights_hash(out) == weights_hash(ran(*run, "--attention", "own", **CUDNN))
    for kind, environment in (("own", CUDNN), ("auto", {})):  # nothing to say: not asked for, or not there
        assert "            not by cuDNN" not in ran(*run, "--attention", kind, "--plan", **environment), kind
    for options in (["--attention", "cudnn"], ["--deterministic", 0]):
        refused(*run, *options, says=[reason], **CUDNN)


def test_plan_lists_the_workspace():
    """Of --plan no GPU is asked: cuDNN's memory is there where it would be asked for. One sequence always fits."""
    for shape, words in ((["-e", "d12", "-b", 64], 8 * 12 * 1024 * 1024 * 2 + 8 * 12 * 1024 * 4),  # 8 at a time
                         (["-e", "d12", "-b", 4, "-t", 4096, "--context", 4096, "--heads", 8],
                          8 * 4096 * 4096 * 2 + 8 * 4096 * 4),
                         (["-e", "d12", "-b", 64, "--deterministic", 0], 2 * 32 * 1024 * 768 * 4 + 32 * 12 * 1024 * 4)):
        out = ran(*shape, "--plan", "all", **CUDNN)
        floats = (words + 65536) // 4
        assert re.search(rf"^cudnn_backward +\({floats}\) +f32 .* backward attention$", out, re.M), (floats, out)
    shape = ["-e", "d12", "-b", 64, "--plan", "all"]
    for options, environment in ((["--attention", "own"], CUDNN), ([], {})):
        assert "\ncudnn" not in ran(*shape, *options, **environment), options


def used(out):
    return re.search(r"^ +it is done (.*)$", out, re.M)[1]


BY_CUDNN, BY_US = "by cuDNN 9.19.0, in the backward 1 sequence at a time", "by our own kernels"
# What cuDNN pretends to take for a graph. Less than no time makes the most graphs the fastest: single sequences.
FAST, SLOW = dict(CUDNN, EMU_CUDNN_SECONDS="-9"), dict(CUDNN, EMU_CUDNN_SECONDS="9")


@pytest.mark.long
def test_the_faster_one():
    """auto times both, and later starts know. Nothing is timed with --matmul-tune 0."""
    hashes = {BY_CUDNN: weights_hash(ran(*RUN, "--attention", "cudnn", **CUDNN)),
              BY_US: weights_hash(ran(*RUN, "--attention", "own"))}
    for fast, slow, environment in ((BY_CUDNN, BY_US, FAST), (BY_US, BY_CUDNN, SLOW)):
        options = ["--matmul-tune-file", cli.path(f"{environment['EMU_CUDNN_SECONDS']}.txt")]
        out = ran(*RUN, *options, **environment)
        times = r"^attention   cudnn 3: \S+ ms, cudnn 1: \S+ ms, own: \S+ ms, timed in \S+ s$"
        assert re.search(times, out, re.M) and used(out) == fast, out
        assert weights_hash(out) == hashes[fast] != hashes[slow], out
        out = ran(*RUN, *options, **(SLOW if fast == BY_CUDNN else FAST))
        assert "attention   known from before\n" in out and used(out) == fast, out
        assert weights_hash(out) == hashes[fast], out
    out = ran(*RUN, "--matmul-tune", 0, **SLOW)
    assert weights_hash(out) == hashes[BY_CUDNN] and "it is done" not in out, out


@pytest.mark.long
def test_resumed_with_the_same():
    """A resumed run takes what the run before has taken, also where the file of choices is not at hand."""
    folder, elsewhere = cli.new_folder("resumed"), dict(XDG_CACHE_HOME=cli.path("elsewhere"))
    out = ran(*RUN, "-o", folder, "-n", 1, **dict(SLOW, XDG_CACHE_HOME=cli.path("first")))
    assert used(out) == BY_US == record_of(folder)["hardware"]["attention"], out
    copy = stopped_after(1, folder)
    again = ran(*RUN, "-o", copy, "--resume", **dict(FAST, **elsewhere))
    assert "attention   as this run has had it before\n" in again and used(again) == BY_US, again
    assert weights_hash(again) == weights_hash(out), (out, again)
    changes = ["--attention", "cudnn", "--deterministic", 0]
    again = ran(*RUN, "-o", stopped_after(1, folder), "--resume", *changes, **dict(CUDNN, **elsewhere))
    changed = "--attention was auto, is cudnn; --deterministic was 1, is 0"
    assert f"resuming with other roundings: {changed}\n" in again, again
    out = ran(*RUN, "-o", folder, "--overwrite", **dict(FAST, **elsewhere))
    assert used(out) == BY_CUDNN == record_of(folder)["hardware"]["attention"], out


def test_all_ranks_alike():
    """Rank 0 chooses for all, who would choose otherwise."""
    run = changed("-d", 768)
    own = {rank: {"environment": dict(speed, XDG_CACHE_HOME=cli.path("of_ranks"))}
           for rank, speed in enumerate((FAST, SLOW))}
    out = ranks.ran(2, *run, only=own, how="tcp")
    assert used(out) == BY_CUDNN, out
    same = ranks.ran(2, *run, "--attention", "cudnn", EMU_CUDNN="1", how="tcp")
    assert weights_hash(out) == weights_hash(same), (out, same)


def test_atomics():
    """--deterministic 0: near to the deterministic one, and said; refused where it would do nothing."""
    folder = cli.new_folder("atomics")
    usual = ran(*RUN, "--attention", "cudnn", **CUDNN)
    out = ran(*RUN, "--deterministic", 0, "-o", folder, **CUDNN)
    assert "attention by cuDNN 9.19.0, whose backward has other bits each time, heads of 8\n" in out, out
    for a, b in zip(losses(usual), losses(out)):
        assert abs(a - b) <= ROUNDING * a, (usual, out)
    record = record_of(folder)
    assert record["options"]["deterministic"] == "0", record
    assert record["hardware"]["attention"] == "by cuDNN 9.19.0, in the backward 3 sequences at a time, with other " \
        "bits each time", record
    for options, kind, says in ((["--attention", "own"], CUDNN, "needs no --attention own"),
                                ([], {}, f"is for cuDNN's attention; {NO_CUDNN}"),
                                ([], NO_ENGINE, "cuDNN 9.19.0 has no plan"),
                                (["--steps", 0], CUDNN, "needs --steps (-x) other than 0")):
        run = RUN if "--steps" not in options else ["-e", "d6"]
        refused(*run, *options, "--deterministic", 0, says=["--deterministic 0: ", says], **kind)
