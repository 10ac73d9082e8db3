"""--attention and --deterministic: the GPU trainer with cuDNN's attention and with its own, in the emulator. Its cuDNN
is there with EMU_CUDNN=1, and has no engine with EMU_CUDNN=none. The graphs and their numbers: kernels_cudnn.cuh.
"""
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
CUDNN = dict(EMU_CUDNN="1")
NO_ENGINE = dict(EMU_CUDNN="none")


def check_close(out, want):
    assert all(abs(a - b) <= ROUNDING * b for a, b in zip(losses(out), losses(want), strict=True)), (out, want)


@pytest.mark.long
def test_near_to_our_own():
    """By default, where cuDNN is: other roundings."""
    own, cudnn = (ran(*RUN, *more, EMU_CHECK="1", **CUDNN) for more in (["--attention", "own"], []))
    assert "attention on plain cores" in own and "attention by cuDNN 9.19.0, heads" in cudnn, (own, cudnn)
    check_close(cudnn, own)
    assert weights_hash(ran(*RUN)) == weights_hash(own) != weights_hash(cudnn)


def test_without_a_plan():
    """The attention is settled before the GPU is asked: a cuDNN that then has no plan ends the run."""
    says = ["attention: cuDNN 9.19.0 has no plan for attention's forward", "NVRTC", "--attention own goes"]
    cudnn = ["--attention", "cudnn"]
    for options in ([], cudnn):
        refused(*RUN, *options, says=says, **NO_ENGINE)
    refused(*RUN, *cudnn, says=["--attention cudnn: ", NO_CUDNN])
    refused(*RUN, "--channels", 24, *cudnn, says=["heads of 12 channels, cuDNN takes multiples of 8"], **CUDNN)


def test_odd_lengths_are_ours():
    """A T that is no multiple of 128 is left to our own kernels, and the run says so."""
    run = [*RUN, "-t", 100, "-d", 300]
    reason = "sequences of 100 tokens, cuDNN is asked for multiples of 128 only"
    out = ran(*run, **CUDNN)
    assert re.search(rf"^ +not by cuDNN: {reason}$", out, re.M) and "attention on plain cores" in out, out
    assert weights_hash(out) == weights_hash(ran(*run, "--attention", "own", **CUDNN))
    for options in (["--attention", "cudnn"], ["--deterministic", 0]):
        refused(*run, *options, says=[reason], **CUDNN)


def test_plan_lists_the_workspace():
    """Of --plan no GPU is asked: cuDNN's memory is there where it would be asked for."""
    words = 8 * 12 * 1024 * 1024 * 2 + 8 * 12 * 1024 * 4  # of 8 at a time
    shape = ["-e", "d12", "-b", 64, "--plan", "all"]
    out = ran(*shape, **CUDNN)
    assert f"\ncudnn_backward ({(words + 65536) // 4})" in re.sub(" +", " ", out), out
    for options, environment in ((["--attention", "own"], CUDNN), ([], {})):
        assert "\ncudnn" not in ran(*shape, *options, **environment), options


@pytest.mark.long
def test_resumed_with_the_same():
    """A resumed run keeps its attention, or is refused. The state names it, and cuDNN's version."""
    def resumed(folder, *options, **environment):
        return ran(*RUN, "-o", folder, "--resume", *options, **environment)

    own, cudnn = cli.new_folder("own"), cli.new_folder("cudnn")
    hashes = [weights_hash(ran(*RUN, "-o", folder, "-n", 1, **environment))
              for folder, environment in ((own, {}), (cudnn, CUDNN))]
    assert record_of(cudnn)["options"]["attention-by"] == "cuDNN 9.19.0"
    out = resumed(stopped_after(1, own), **CUDNN)
    assert "not by cuDNN: the resumed run has taken our own kernels\n" in out, out
    assert weights_hash(out) == hashes[0], out
    assert weights_hash(resumed(stopped_after(1, cudnn), **CUDNN)) == hashes[1]
    for folder, was, now, options, environment in (
            (own, "our own kernels", "cuDNN 9.19.0", ["--attention", "cudnn"], CUDNN),
            (cudnn, "cuDNN 9.19.0", "our own kernels", [], {})):
        copy = stopped_after(1, folder)
        refused(*RUN, "-o", copy, "--resume", *options, says=[f"attention-by was {was}, is {now};"], **environment)
        assert "resuming with changes: attention-by was" in resumed(copy, *options, "--allow-changes", **environment)


def test_all_ranks_alike():
    """Ranks with another cuDNN, or with one that has no plan, end together, in one line."""
    run = [*RUN, "-d", 768]
    ranks.refused(2, *run, only={0: {"environment": CUDNN}}, says=["attention (alike with --attention own)"])
    ranks.refused(2, *run, only={1: {"environment": NO_ENGINE}}, **CUDNN,
                  says=["rank 1 (", "has no plan for attention", "--attention own goes without cuDNN"])


def test_atomics():
    """--deterministic 0: near to the deterministic one, and said; refused where it would do nothing."""
    folder = cli.new_folder("atomics")
    usual = ran(*RUN, "--attention", "cudnn", **CUDNN)
    out = ran(*RUN, "--deterministic", 0, "-o", folder, **CUDNN)
    assert "attention by cuDNN 9.19.0, whose backward has other bits each time, heads of 8\n" in out, out
    check_close(out, usual)
    assert record_of(folder)["options"]["deterministic"] == "0"
    refused(*RUN, "--deterministic", 0, "--attention", "own", says=["needs no --attention own"], **CUDNN)
    refused(*RUN, "--deterministic", 0, says=[f"--deterministic 0: is for cuDNN's attention: {NO_CUDNN}"])
