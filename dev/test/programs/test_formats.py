"""Checkpoints of the CPU trainer, read by the independent readers of formats.py. More: test_practice.py"""
import numpy as np
import pytest

import formats
from cli import QUIET, model, random_tokens, ran, shard
from formats import CONFIG, random_model
from tools import new_folder, path


@pytest.mark.parametrize("version, optimizer", ((3, "adamw"), (5, "adamw"), (3, "muon")))
def test_checkpoint(version, optimizer):
    """With a learning rate of 0, AdamW leaves the weights as they were: those of an fp32 model (version 3) and those of
    a bf16 model (version 5). After one update the moments of an element belong to one gradient g: m = 0.1 g and
    v = 0.05 g^2, so v = 5 m^2."""
    tensors, run = random_model(version), new_folder("a run")
    ran("-i", shard("tokens.bin", random_tokens(100, CONFIG["V"])), "-e", model("in.bin", CONFIG, tensors, version),
        "-t", 7, "-b", 2, "-x", 1, "--lr", 0, *QUIET, "--optimizer", optimizer, "-o", run)
    config, found, facts, sections = formats.read_checkpoint(run, 1)
    equal = all(np.array_equal(found[name], values) for name, values in tensors.items())
    assert config == CONFIG and found.keys() == tensors.keys() and equal == (optimizer == "adamw")
    assert facts["--train-data"] == path("tokens.bin") and facts["step"] == "1"
    m, v = (np.frombuffer(sections[name], "f").astype("d") for name in ("adam_m", "adam_v"))
    names_in_v = formats.names_in_v(CONFIG, facts)
    assert len(names_in_v) == (12 if optimizer == "muon" else 16)
    for name, values in tensors.items():
        n = len(values)
        if name in names_in_v:
            assert m[:n].any() and (abs(v[:n] - 5 * m[:n]**2) <= 1e-5 * v[:n] + 1e-38).all(), name
            v = v[n:]
        m = m[n:]
