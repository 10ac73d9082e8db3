"""--profile of the CPU trainer: the table of a step's phases."""
import re

import pytest

from cli import QUIET, TINY, path, ran, refused, shard, random_tokens, weights_hash

PHASES = ["embedding", "layernorm", "matmul forward", "matmul dx", "matmul dW", "bias gradients", "attention forward",
          "attention backward", "gelu", "head", "cross entropy", "gradient clearing", "gradient norm", "AdamW"]
# A phase with its milliseconds, its share, and how near it comes to a limit of the machine.
ROW = re.compile(r"^(\w[\w ]*?) +([\d.]+) +([\d.]+)%(?: +[\d.]+ (GFLOP/s|GB/s) +\d+%)?$", re.M)


def run(*words):
    return ran("-i", shard("tokens.bin", random_tokens(500, 257)), *TINY, "--vocab", 257, *words)


@pytest.mark.parametrize("level", range(4))
def test_every_phase(level):
    words = (*QUIET, "--steps", 3, "--total-batch", 64, "--recompute", level)
    out = run(*words, "--profile")
    rows = ROW.findall(out[out.index("\nprofile of 2 steps after the first; limits: "):])
    assert [row[0] for row in rows] == [*PHASES, "other", "step"], out
    assert all(row[3] for row in rows[:-2]) and not any(row[3] for row in rows[-2:]), out
    assert all(float(row[1]) >= 0 for row in rows) and float(rows[-1][1]) > 0 and rows[-1][2] == "100.0", out
    assert abs(sum(float(row[2]) for row in rows[:-1]) - 100) <= 0.05 * len(rows), out
    assert abs(sum(float(row[1]) for row in rows[:-1]) - float(rows[-1][1])) <= 0.005 * len(rows), out
    plain = run(*words)
    assert "profile" not in plain and weights_hash(plain) == weights_hash(out)


def test_muon():
    """One row more, by its rounds' operations."""
    out = run(*QUIET, "--steps", 2, "--optimizer", "muon", "--profile")
    rows = ROW.findall(out[out.index("\nprofile of "):])
    assert [row[0] for row in rows] == [*PHASES, "Muon", "other", "step"] and rows[-3][3] == "GFLOP/s", out
    assert abs(sum(float(row[2]) for row in rows[:-1]) - 100) <= 0.05 * len(rows), out


def test_only_steps_of_training_count():
    """A validation runs through the same layers. One step is its own mean."""
    out = run("--steps", 1, "--val-every", 1, "--sample-every", 0, "-j", path("tokens.bin"), "--profile")
    step = float(re.search(r"\| ([\d.]+) ms \|", out)[1])
    assert "\nprofile of 1 steps; limits: " in out
    assert float(ROW.findall(out)[-1][1]) <= step + 0.01, out


def test_refused_without_steps():
    refused("--steps", 0, "--profile", says=["--profile", "does nothing with --steps 0"])
