"""--fp8: the GPU trainer with the linear layers of its blocks in 8 bits, in the emulator: losses beside those of bf16,
and what it refuses. The same bits however it is run: test_runs.py. The kernels and products: kernels_fp8.cuh.
"""
import re

import pytest

import cli
from cli import QUIET, losses, norms, of_llama, val_losses, weights_hash
from gpu_program import EMULATED, GPU, ran, refused

# 36 rows in a micro-batch: no multiple of 16, so that transposed rows are padded.
SHAPE = ["-i", cli.text_file(), "--layers", 2, "--heads", 2, "--channels", 32, "--context", 12, "-t", 12, "-b", 3]
RUN = [*SHAPE, "-d", 72, "-x", 4, "-l", "1e-2", "-c", "0.1", "-s", 0, "-v", 4, "-m", 1]
# Of a rounding to e4m3, whose numbers have 4 significant bits.
LARGEST_ROUNDING = 2.0**-4


@pytest.mark.parametrize("trainer", (GPU, pytest.param(of_llama(GPU), marks=pytest.mark.long)), ids=("gpt2", "llama"))
def test_close_to_bf16(trainer):
    """Losses within 1 %, and norms of the gradient, which is rounded in all its parts, as near as one such rounding."""
    fp8, bf16 = trainer.ran(*RUN, "--fp8", EMU_CHECK="1"), trainer.ran(*RUN)
    assert weights_hash(fp8) != weights_hash(bf16) and losses(fp8) != losses(bf16), "8 bits change nothing"
    for find, limit in ((losses, 0.01), (val_losses, 0.01), (norms, LARGEST_ROUNDING)):
        assert len(find(bf16)) >= 2, (find, bf16)
        assert all(abs(a - b) <= limit * b for a, b in zip(find(fp8), find(bf16), strict=True)), (find, fp8, bf16)
    assert re.search(r"^precision +bf16, .*linear layers of the blocks in fp8", fp8, re.M), fp8
    assert "fp8" not in bf16, bf16


def test_with_attention_by_cudnn():
    """What cuDNN writes is measured, too. Values by 2**-30 and the layer behind by 2**30 are the same model; without a
    scale these values would be zeros in 8 bits, and their gradients would not fit."""
    if not EMULATED:
        pytest.skip("whether cuDNN is here is not known")
    config = cli.config(C=32, maxT=128, L=2)
    params = cli.make_params(config)
    for name, factor, thirds in (("qkvw", 2.0**-30, 2), ("qkvb", 2.0**-30, 2), ("attprojw", 2.0**30, 0)):
        layers = params[name].reshape(2, -1)
        layers[:, thirds * layers.shape[1] // 3:] *= factor
    model = cli.model("small_values.bin", config, params)
    run = ["-e", model, *SHAPE[:2], "-b", 1, "-t", 128, "-x", 1, "--fp8", *QUIET]
    own = ran(*run, "--grad-clip", 0)
    out = ran(*run, "--grad-clip", 0, "--attention", "cudnn", EMU_CUDNN="1")
    (norm, ), (expected, ) = norms(out), norms(own)
    assert expected > 1e3 and abs(norm - expected) <= LARGEST_ROUNDING * expected, (norm, expected)
    (loss, ), (expected, ) = losses(out), losses(own)
    assert abs(loss - expected) <= 1e-3 * expected, (loss, expected)
    again = ran(*run, "--grad-clip", 0, "--attention", "cudnn", "-r", 3, EMU_CUDNN="1")
    assert weights_hash(again) == weights_hash(out), (again, out)


def test_evaluates_and_samples():
    """Weights that are not trained are needed in one of the two orders only."""
    run = ["-e", cli.model("still.bin", cli.config(C=32, L=2)), *SHAPE[:2], "-t", 12, "-b", 3, "-x", 0, "-m", 2]
    (loss, ), (expected, ) = (val_losses(ran(*run, *fp8, "-g", 2)) for fp8 in (["--fp8"], []))
    assert loss != expected and abs(loss - expected) <= 0.01 * expected, (loss, expected)


def test_refusals():
    run = [*SHAPE, "-x", 1, *QUIET, "--fp8"]
    refused(*run, "-ge", 1, says=["--gelu-fusion (-ge)", "--fp8"])
    refused(*run[:6], "--channels", 24, *run[8:], says=["--fp8", "24 channels", "multiple of 16"])
    if EMULATED:
        refused(*run, says=["--fp8", "compute capability 8.6", "8.9"], EMU_CAPABILITY="8.6")
        ran(*run, EMU_CAPABILITY="8.9")  # the oldest that can
