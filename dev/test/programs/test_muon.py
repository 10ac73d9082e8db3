"""Runs with --optimizer muon: changing the optimizer, clipped gradients. What an update computes: test_model.c and
test_gpt2.cu. Resuming: test_runs.py. Its peer in PyTorch: test_twin.py.
"""
import os

import numpy as np
import pytest

from cli import (QUIET, TINY, new_folder, norms, path, ran, read, refused, stopped_after, text_file, weights_hash,
                 write)
from formats import read_checkpoint

RUN = ["-i", text_file(), *TINY, *QUIET, "--weight-decay", 0.1]
MUON = ["--optimizer", "muon", "--muon-warmup", 6]
OPTIMIZERS = {"adamw": [], "muon": MUON}
LEFT_OUT = ("qkvw", "attprojw", "fcw", "fcprojw")  # of the second moment


def setup_module():
    for name, words in OPTIMIZERS.items():
        ran(*RUN, *words, "-x", 9, "-n", 4, "-o", new_folder(name))


def tensors_of(folder, step):
    return read_checkpoint(path(folder), step)[1]


@pytest.mark.parametrize("then, now", (("adamw", "muon"), ("muon", "adamw")))
def test_another_optimizer(then, now):
    """It is refused, or begins anew. From moments of zero, AdamW's first update of an element is as large as the rate,
    unless its gradient is next to nothing."""
    changed, rate = f"--optimizer was {then}, is {now}", 1e-3
    folder = stopped_after(4, path(then))
    words = [*OPTIMIZERS[now], "--optimizer", now, "--resume", "-o", folder]
    refused(*RUN, *words, "-x", 9, says=[f"{folder}: {changed}; ", "; give these as they were, or --allow-changes"])
    before = tensors_of(folder, 4)
    out = ran(*RUN[:-2], *words, "-x", 5, "--lr", rate, "--schedule", "constant", "--allow-changes")
    assert changed in out and "\nthe optimizer begins anew, from moments of zero\n" in out, out
    after = tensors_of(folder, 5)
    for name in ("fcb", "ln2w", *(LEFT_OUT if now == "adamw" else ())):
        changes = np.sort(abs(before[name] - after[name])) / rate
        assert changes[len(changes) // 4] >= 0.99 and changes[-1] <= 1.01, (name, changes)


def test_back_to_another_optimizer():
    """Moments of a damaged checkpoint, which were read in vain, do not stay."""
    words = [*RUN, *MUON, "-x", 9, "-n", 4, "--resume", "--allow-changes", "-o"]
    folder = stopped_after(4, path("adamw"))
    want = weights_hash(ran(*words, folder))
    copy = stopped_after(8, folder, "back")
    state = os.path.join(copy, "state_00000008.bin")
    whole = read(state)
    write(state, whole[:-1] + bytes([whole[-1] ^ 1]))
    out = ran(*words, copy)
    assert "going back to the checkpoint of step 4" in out and weights_hash(out) == want, out


def test_clipped_gradients():
    """The size of a gradient does not matter to one update. It does to the momentum, which adds gradients of steps."""
    words = [*RUN, *MUON, "--lr", 0, "--schedule", "constant", "-x", 6, "-n", 1]
    sizes = norms(ran(*words, "--grad-clip", 0, "-o", new_folder("free")))
    assert min(sizes) > 1 and max(sizes) > 1.1 * min(sizes), sizes
    ran(*words, "--grad-clip", 1, "-o", new_folder("clipped"))
    for name in LEFT_OUT:
        first, last = (abs(tensors_of("free", step)[name] - tensors_of("clipped", step)[name]).max() for step in (1, 6))
        assert first <= 1e-5 and last >= 100 * first > 0, (name, first, last)
