"""The rooms of llmc/ include each other only as the arrows in dev/house.py allow, and no header includes a trainer."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "dev"))
import house  # noqa: E402 (its folder had to be named first)


def wrong_arrows(included):
    """The arrows that the rules do not have. included: the headers of llmc/ that a header includes, by its path."""
    found = []
    for path, names in included.items():
        room = path.split("/")[1]
        allowed = [room, *house.ROOMS[room][1].split()]
        found += [f"{path} -> {name}" for name in names if name.split("/")[1] not in allowed]
    return found


def test_arrows():
    included = {path: house.included(path) for path in house.headers()}
    assert len(included) > 50 and sum(map(len, included.values())) > 100
    assert wrong_arrows(included) == []
    for path in included:
        assert not re.search(r'#include "(\.\./)*(train|test)_gpt2', house.read(path)), path


def test_a_wrong_arrow_is_found():
    included = {"llmc/layers/gelu.cuh": ["llmc/run/args.h", "llmc/cuda/cuda_utils.cuh"],
                "llmc/base/json.h": ["llmc/base/text.h", "llmc/data/tokenizer.h"]}
    assert wrong_arrows(included) == ["llmc/layers/gelu.cuh -> llmc/run/args.h",
                                      "llmc/base/json.h -> llmc/data/tokenizer.h"]


def test_rooms_are_those_of_contributing():
    """The table of rooms in CONTRIBUTING.md is the one that is checked."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([a-z, ]+) \|$", house.read("CONTRIBUTING.md"), re.M)
    assert {room: words.replace("nothing", "").replace(",", "").split() for room, words in rows} == \
        {room: allowed.split() for room, (_, allowed) in house.ROOMS.items()}
