"""--attention: the GPU trainer with cuDNN's attention and with its own, in the emulator, whose cuDNN is there with
EMU_CUDNN=1, and has no engine with EMU_CUDNN=none. The graphs and their numbers: kernels_cudnn.cuh.

TRAIN_GPT2CU names the program (./train_gpt2emu).
"""
import os
import re
import sys

PROGRAM = os.environ.get("TRAIN_GPT2CU", "./train_gpt2emu")
if not os.path.exists(PROGRAM):
    print(f"skip gpu_cudnn: all of it: no {PROGRAM} here (make train_gpt2emu)")
    print("gpu_cudnn: 0 passed, 0 failed, 1 skipped")
    sys.exit(0)
with open(PROGRAM, "rb") as binary:
    if b"EMU_CUDNN" not in binary.read():
        print("skip gpu_cudnn: all of it: no emulated program")
        print("gpu_cudnn: 0 passed, 0 failed, 1 skipped")
        sys.exit(0)
os.environ["TRAIN_GPT2"] = PROGRAM

import cli  # noqa: E402
import harness  # noqa: E402
from cli import QUIET, finish, losses, ran, weights_hash  # noqa: E402

RUN = ["-i", cli.text_file(), "--layers", 2, "--heads", 2, "--channels", 16, "--context", 12, "-t", 12, "-b", 3, "-d",
       72, "-x", 3, "-l", "1e-2", *QUIET]
ROUNDING = 2.0**-8  # of a value to bf16


def with_cudnn(kind):
    return dict(cli.ENVIRONMENT, EMU_CUDNN=kind)


def near_to_our_own():
    """By default, where cuDNN is: other roundings, and the same bits in the same run and at every recompute level."""
    own, cudnn = ran(*RUN, "--attention", "own"), ran(*RUN, env=with_cudnn("1"))
    assert "attention on plain cores" in own and "attention by cuDNN 9.19.0" in cudnn, (own, cudnn)
    for a, b in zip(losses(own), losses(cudnn)):
        assert abs(a - b) <= ROUNDING * a, (losses(own), losses(cudnn))
    assert weights_hash(own) != weights_hash(cudnn)
    for options in (["--attention", "cudnn", "-r", 3], ["-r", 1]):
        assert weights_hash(ran(*RUN, *options, env=with_cudnn("1"))) == weights_hash(cudnn), options
    assert weights_hash(ran(*RUN)) == weights_hash(own)


def without_a_plan():
    """auto goes on without cuDNN and says why; cudnn ends the run."""
    out = ran(*RUN, env=with_cudnn("none"))
    reason = "cuDNN 9.19.0 has no plan for attention's forward"
    assert re.search(rf"^attention +by our own kernels: {reason}", out, re.M), out
    own = ran(*RUN, "--attention", "own")
    assert weights_hash(out) == weights_hash(own)
    planned = [re.findall(r"^memory +(\S+ \S+) on the GPU", text, re.M) for text in (out, own)]
    assert planned[0][0] != planned[0][1] and planned[0][1:] == planned[1], planned
    for kind, says in (("none", "it needs NVRTC of its CUDA release"), (None, "the cuDNN library says version 0")):
        environment = with_cudnn(kind) if kind else cli.ENVIRONMENT
        _, err = finish(cli.start(*RUN, "--attention", "cudnn", env=environment), 1)
        assert re.fullmatch(r"train_gpt2cu: --attention cudnn: [^\n]+\n", err) and says in err, err
    odd = [24 if option == 16 else option for option in RUN]
    _, err = finish(cli.start(*odd, "--attention", "cudnn", env=with_cudnn("1")), 1)
    assert "heads of 12 channels, cuDNN takes multiples of 8" in err, err
    one = list(RUN)
    one[RUN.index("-t") + 1] = 1
    _, err = finish(cli.start(*one, "--attention", "cudnn", env=with_cudnn("1")), 1)
    assert "cuDNN 9.19.0 takes no sequences of one token" in err, err
    _, err = finish(cli.start(*RUN[:-len(QUIET) - 4], "-x", 0, "--attention", "cudnn", env=with_cudnn("1")), 1)
    assert err.startswith("train_gpt2cu: --attention cudnn: is for training; with --steps 0"), err


def plan_lists_the_workspace():
    """Of --plan no GPU is asked: cuDNN's memory is there where it would be asked for."""
    shape = ["-e", "d12", "-b", 64, "-t", 1024, "--plan"]
    out = ran(*shape, env=with_cudnn("1"))
    floats = (8 * 12 * 1024 * 1024 * 2 + 8 * 12 * 1024 * 4 + 65536) // 4  # 8 sequences at a time
    assert re.search(rf"^cudnn_backward +\({floats}\) +f32 .* backward attention$", out, re.M), out
    for options, environment in ((["--attention", "own"], with_cudnn("1")), ([], cli.ENVIRONMENT)):
        assert "cudnn" not in ran(*shape, *options, env=environment).lower(), options


if __name__ == "__main__":
    harness.run("gpu_cudnn", [near_to_our_own, without_a_plan, plan_lists_the_workspace])
