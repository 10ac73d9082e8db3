"""The code keeps the rules of dev/house.py: arrows between rooms, lines, printing, depth, functions and structs."""
import re
import sys

import pytest

from tools import ROOT

sys.path.insert(0, f"{ROOT}/dev")
import house  # noqa: E402 (its folder had to be named first)


def test_rooms_are_those_of_contributing():
    """The table of rooms in CONTRIBUTING.md is the one that is checked."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([a-z, ]+) \|$", house.read("CONTRIBUTING.md"), re.M)
    assert {room: words.replace("nothing", "").replace(",", "").split() for room, words in rows} == \
        {room: allowed.split() for room, (_, _, allowed) in house.ROOMS.items()}


def broken(check):
    """What a check says against the code."""
    found = []
    check(lambda holds, where, what, quiet=False: holds or found.append(f"{where}: {what}"))
    return found


@pytest.mark.parametrize("check", house.CHECKS)
def test_rules(check):
    assert broken(check) == []


@pytest.mark.parametrize("name, value, check, wanted", [
    ("ROOMS", {**house.ROOMS, "cpu": (100, 650, "base model")}, house.check_rooms, "llmc/cpu: .* lines of 100"),
    ("ROOMS", {**house.ROOMS, "cpu": (2000, 650, "model")}, house.check_arrows, "llmc/cpu/.*: -> llmc/base/.*"),
    ("BUDGETS", {"dev": 20000, "dev/emu": 100}, house.check_budgets, "dev/emu: .* lines of 100"),
    ("SHARED_LINES", 12, house.check_shared, "train_gpt2.c: .* lines of 12 are in train_llama3.c, too"),
    ("PROGRAMS", ["dev/test/test.h"], house.check_prints, r"dev/test/test.h: prints past say\(\): .*"),
    ("EMU", [" ".join(house.EMU[:4]), *house.EMU[:3:-1]], house.check_emu, "dev/emu/nccl.cpp: uses op_begin of .*"),
    ("PROGRAMS", ["llmc/data/tokenizer.h"], house.check_sections, "llmc/data/tokenizer.h: section 2: .* has none"),
    ("WIDTH", 100, house.check_widths, "dev/house.py: line .* columns of 100"),
    ("FUNCTION_LINES", 40, house.check_code, "llmc/layers/layernorm.cuh: layernorm_backward_kernel: .* lines of 40")])
def test_a_broken_rule_is_found(monkeypatch, name, value, check, wanted):
    monkeypatch.setattr(house, name, value)
    found = broken(check)
    assert any(re.fullmatch(wanted, line) for line in found), found


def test_mistakes_can_be_planted():
    """The code that each row of dev/test/mutations.py would spoil is there."""
    sys.path.insert(0, f"{ROOT}/dev/test")
    import mutations
    assert len(mutations.MISTAKES) > 150
    assert mutations.unfit(mutations.MISTAKES) == []
