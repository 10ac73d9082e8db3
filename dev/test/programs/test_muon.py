"""Runs with --optimizer muon: resuming, changing the optimizer, numbers that overflow, skipped and clipped updates.

What an update computes: test_gpt2.c and test_model.c. Its checkpoints: test_checkpoint.c, test_pieces.c. Its options:
test_args.c. Its peer in PyTorch: test_twin.py.
"""
import os
import re

import pytest

from cli import (QUIET, TINY, checkpoints, losses, new_folder, norms, path, ran, random_tokens, refused, shard,
                 stopped_after, text_file, weights_hash)
from formats import read_checkpoint, read_state, rewrite_state
from run_folder import record_of

RUN = ["-i", text_file(), *TINY, *QUIET, "--weight-decay", 0.1]
MUON = ["--optimizer", "muon", "--muon-warmup", 6]
OPTIMIZERS = {"adamw": [], "muon": MUON}
LEFT_OUT = ("qkvw", "attprojw", "fcw", "fcprojw")  # of the second moment
REFERENCE = {}  # the weights hash of an uninterrupted run with each optimizer


def setup_module():
    for name, words in OPTIMIZERS.items():
        REFERENCE[name] = weights_hash(ran(*RUN, *words, "-x", 9, "-n", 4, "-o", new_folder(name)))


def tensors_of(folder, step):
    return read_checkpoint(folder, step)[1]


def most_change(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def test_resumed_run():
    """Threads and memory may change. The state is complete, and smaller than AdamW's."""
    for words in (["--threads", 2, "--recompute", 3], ["--threads", 1, "--recompute", 0]):
        folder = stopped_after(4, path("muon"))
        out = ran(*RUN, *MUON, "-x", 9, *words, "-o", folder, "--resume")
        assert len(losses(out)) == 5 and weights_hash(out) == REFERENCE["muon"] != REFERENCE["adamw"], out
    size = sum(len(values) for name, values in read_checkpoint(folder, 9)[1].items() if name not in LEFT_OUT)
    assert len(read_state(os.path.join(folder, "state_00000009.bin"))[1]["adam_v"]) == 4 * size
    options = record_of(folder)["options"]
    assert [options[name] for name in ("optimizer", "muon-lr", "muon-warmup", "muon-scale")] == [
        "muon", "0.02", "6", "original"], options


@pytest.mark.parametrize("then, now", (("adamw", "muon"), ("muon", "adamw")))
def test_another_optimizer(then, now):
    """It is refused, or begins anew. From moments of zero, AdamW's first update of an element is as large as the rate,
    unless its gradient is next to nothing."""
    changed, rate = f"--optimizer was {then}, is {now}", 1e-3
    words = [*RUN[:-2], *OPTIMIZERS[now], "-x", 5, "--lr", rate, "--schedule", "constant", "--resume"]
    folder = stopped_after(4, path(then))
    refused(*RUN, *OPTIMIZERS[now], "-x", 9, "-o", folder, "--resume",
            says=[f"{folder}: {changed}; ", "; give these as they were, or --allow-changes to go on\n"])
    before = tensors_of(folder, 4)
    out = ran(*words, "-o", folder, "--allow-changes")
    assert changed in out and "\nthe optimizer begins anew, from moments of zero\n" in out, out
    after = tensors_of(folder, 5)
    for name in ("fcb", "ln2w", *(LEFT_OUT if now == "adamw" else ())):
        changes = sorted(abs(x - y) / rate for x, y in zip(before[name], after[name]))
        assert changes[len(changes) // 4] >= 0.99 and changes[-1] <= 1.01, (name, changes)


def test_back_to_another_optimizer():
    """Moments of a damaged checkpoint, which were read in vain, do not stay."""
    words = [*RUN, *MUON, "-x", 9, "-n", 4, "--resume", "--allow-changes", "-o"]
    folder = stopped_after(4, path("adamw"))
    want = weights_hash(ran(*words, folder))
    copy = stopped_after(8, folder, "back")
    with open(os.path.join(copy, "state_00000008.bin"), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last, = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    out = ran(*words, copy)
    assert "going back to the checkpoint of step 4" in out and weights_hash(out) == want, out


def test_matrices_that_overflow():
    """A decay that makes the matrices grow, and nothing else: the run names the step, and keeps a checkpoint."""
    folder = new_folder("overflows")
    grows = ["--lr", 0, "--muon-lr", 1, "--weight-decay", 100, "--schedule", "constant"]
    err = refused(*RUN[:-2], *MUON, *grows, "-x", 60, "-n", 1, "--keep", 1, "-o", folder,
                  says=[re.compile(r"step \d+: the (loss|gradient norm) is (NaN|-?inf), first found in "),
                        f"; the last checkpoint in {folder} is that of step "])
    step, = checkpoints(folder)
    assert f"is that of step {step};" in err and set(os.listdir(folder)) <= {
        ".lock", "main.log", "speed.log", "run.jsonl", "tokenizer.bin", f"model_{step:08}.bin",
        f"state_{step:08}.bin"}, (err, os.listdir(folder))
    read_checkpoint(folder, step)


def test_skipped_updates():
    """A run that skips two spikes goes on as a run that never met them: weights, momentum, AdamW's count."""
    ordinary = [1, 2, 3, 4] * 8 * 141 + [1]
    spike = [1] + random_tokens(31, 300)  # its first token is the last target of the batch before
    spiked = shard("spiked.bin", ordinary[:32 * 140] + spike + spike + ordinary[32 * 140:])
    flat = shard("flat.bin", ordinary)
    words = [*RUN[2:], *MUON, "--vocab", 300, "--schedule", "constant", "--lr", 0.02]
    for option in ("--skip-loss-z", "--skip-grad-z"):
        out = ran("-i", spiked, *words, option, 4, "-x", 143)
        assert re.findall(r"^step (\d+): update skipped", out, re.M) == ["141", "142"], out[-900:]
        assert weights_hash(out) == weights_hash(ran("-i", flat, *words, option, 4, "-x", 141))


def test_clipped_gradients():
    """The size of a gradient does not matter to one update. It does to the momentum, which adds gradients of steps."""
    words = [*RUN, *MUON, "--lr", 0, "--schedule", "constant", "-x", 6, "-n", 1]
    sizes = norms(ran(*words, "--grad-clip", 0, "-o", new_folder("free")))
    assert min(sizes) > 1 and max(sizes) > 1.1 * min(sizes), sizes
    ran(*words, "--grad-clip", 1, "-o", new_folder("clipped"))
    for name in LEFT_OUT:
        first, last = (most_change(tensors_of(path("free"), step)[name], tensors_of(path("clipped"), step)[name])
                       for step in (1, 6))
        assert first <= 1e-5 and last >= 100 * first > 0, (name, first, last)


def test_settings_on_the_screen():
    for words, says in ((MUON, "0.02, cosine to 0.002, momentum 0.85 to 0.95, scale original"),
                        (["--optimizer", "muon", "--muon-warmup", 0, "--muon-scale", "rms"],
                         "0.0003, cosine to 3e-05, momentum 0.95, scale rms")):
        out = ran(*RUN, *words, "--plan")
        assert f"\noptimizer   Muon for the matrices of the blocks, learning rate {says}\n" in out, out
    assert "Muon" not in ran(*RUN, "--plan")
