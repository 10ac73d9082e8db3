"""What the C side writes, read by the independent readers of formats.py, and the reverse; every value must be equal."""
import os
import subprocess
from array import array

import pytest

import formats
from cli import model, tensor_shapes
from formats import CONFIG, random_model
from tools import ROOT, compiled_tool, new_folder, path, read, write


def tool(*arguments):
    done = subprocess.run([compiled_tool("formats_tool"), *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def check_model(file, tensors):
    config, version, found = formats.read_model(path(file))
    assert config == CONFIG and version == 3, (config, version)
    for name in tensors:
        assert found[name].tobytes() == tensors[name].tobytes(), name


def test_model_bin_both_ways():
    for version in (3, 5):
        tensors = random_model(version)
        file = model("in.bin", CONFIG, tensors, version)
        tool("convert", file, path("out.bin"))
        tool("ranges", file)
        check_model("out.bin", tensors)
    assert read("in.bin") != read("out.bin")


def test_state():
    tool("state", path("state_00000020.bin"))
    facts, sections, elsewhere = formats.read_state(path("state_00000020.bin"))
    assert elsewhere == {}
    assert facts == {"step": "20", "loss": "0.10000000000000001", "train_data": "a folder/with spaces/*.bin"}
    assert sections["flags"] == b"\x00\x7f\xff" and list(sections) == ["adam_m", "flags"]
    assert list(array("f", sections["adam_m"])) == list(array("f", [0.5, -1.25, 3.0, 1e-30, 65504.0]))
    assert float(facts["loss"]) == 0.1
    data = read("state_00000020.bin")
    for at in (30, 100, len(data) - 1):  # the independent reader finds damage, too
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(ValueError):
            formats.read_state(write("damaged.bin", damaged))


@pytest.mark.parametrize("optimizer", ([], ["muon"]), ids=("adamw", "muon"))
def test_checkpoint(optimizer):
    """What was written in pieces, read by the independent reader."""
    tensors, run = random_model(11), path(new_folder("run"))
    sums = tool("checkpoint", model("in.bin", CONFIG, tensors), run, *optimizer).split()
    config, found, facts, sections = formats.read_checkpoint(run, 7)
    assert sorted(os.listdir(run)) == ["model_00000007.bin", "state_00000007.bin"]
    assert read("run/model_00000007.bin") == read("in.bin")
    assert config == CONFIG and found == tensors
    assert sorted(facts) == [*(["--optimizer"] if optimizer else []), "model_header", "step"]
    assert list(sections) == ["adam_m", "adam_v", "flags"] and sections["flags"] == b"\x00\x7f\xff"
    everything = array("f", (x for name in tensor_shapes(CONFIG) for x in tensors[name]))
    names = formats.names_in_v(CONFIG, facts)
    assert array("f", sections["adam_m"]) == array("f", (x / 2 for x in everything))
    assert array("f", sections["adam_v"]) == array("f", (abs(x) / 2 for name in names for x in tensors[name]))
    arrays = (everything.tobytes(), sections["adam_m"], sections["adam_v"])
    assert sums == [f"{formats.sum64(words):016x}" for words in arrays], sums
    with open(path("run/model_00000007.bin"), "r+b") as file:  # the independent reader finds damage, too
        file.seek(9000)
        file.write(b"?")
    with pytest.raises(ValueError, match="^checkpoint: parameters$"):
        formats.read_checkpoint(run, 7)
