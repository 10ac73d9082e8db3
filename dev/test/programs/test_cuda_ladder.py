"""The ladders of dev/cuda: every version computes what the CPU's function computes, and its row is the row of the page.
A quick run has the first and the last version of some layers, a long run all of them."""
import glob
import os
import re
import subprocess
import sys

import pytest

from tools import ROOT, text_of

NAMES = sorted(os.path.basename(path)[:-len(".cu")] for path in glob.glob(os.path.join(ROOT, "dev", "cuda", "*.cu")))
ROW = r"^\| (\d+) (.+?) +\|(.*)\|$"


def ladder(name, *arguments, **environment):
    """Runs a ladder that make has built."""
    program = f"build/emu/ladder_{name}"
    if not os.path.exists(os.path.join(ROOT, program)):
        pytest.skip(f"no {program} here (make {program})")
    return subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True,
                          env=dict(os.environ, **environment))


def tables(text):
    """{layer with its sizes: its rows}"""
    parts = re.split(r"^\*\*(.*)\.\*\* .*$", text, flags=re.M)
    return {name: re.findall(ROW, rows, re.M) for name, rows in zip(parts[1::2], parts[2::2])}


def without_gain(cells):
    return cells.split("|")[:-1]


def test_every_ladder_is_listed():
    listed = re.search(r"^LADDERS = ((?:.*\\\n)*.*)$", text_of("dev/test/tests.mk"), re.M)[1].replace("\\", "").split()
    assert sorted(listed) == NAMES


def test_chapter():
    """The rows that chapter 12 shows are rows of the page, with some columns left out."""
    rows = [row for rows in tables(text_of("dev/cuda/README.md")).values() for row in rows]
    shown = re.findall(ROW, text_of("doc/12_gpu_kernels.md"), re.M)
    assert len(shown) >= 5, shown
    for number, name, cells in shown:
        assert any((number, name) == row[:2] and are_among(cells, row[2]) for row in rows), (number, name, cells)


def are_among(cells, all_cells):
    """Do these cells stand among all of them, in this order?"""
    rest = iter(all_cells.replace(" ", "").split("|"))
    return all(cell in rest for cell in cells.replace(" ", "").split("|"))


@pytest.mark.parametrize("name", ("layernorm", pytest.param("matmul", marks=pytest.mark.long)))
def test_ends(name):
    """The first and the last version of each layer, with the rows of the page, but for the gain."""
    page = tables(text_of("dev/cuda/README.md"))
    result = ladder(name, "--ends")
    assert result.returncode == 0 and result.stderr == "", result
    ran = tables(result.stdout)
    assert ran
    for layer, rows in ran.items():
        expected = [page[layer][0], page[layer][-1]]
        for (number, version, cells), row in zip(rows, expected):
            assert (number, version) == row[:2] and without_gain(cells) == without_gain(row[2]), (layer, rows, expected)


@pytest.mark.long
def test_page():
    """All versions of all layers: the page is what `make ladder` prints."""
    check = [sys.executable, os.path.join(ROOT, "dev", "cuda", "table.py"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_other_order():
    """The order of threads changes no result of the first and the last versions. Each program checks its results."""
    for name in NAMES:
        result = ladder(name, "--ends", EMU_SCHEDULE="random:7")
        assert result.returncode == 0 and result.stderr == "", result
