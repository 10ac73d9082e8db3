"""The ladders. Of dev/cuda: every version computes what the CPU's function computes, and its row is one of the page. A
quick run has two versions of a layer, a long run all of them. Of dev/cpu, matrix multiplies: the program checks every
step, and the chapter has them."""
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


def test_every_ladder_is_listed():
    listed = re.search(r"^LADDERS = ((?:.*\\\n)*.*)$", text_of("dev/test/tests.mk"), re.M)[1].replace("\\", "").split()
    assert sorted(listed) == NAMES


@pytest.mark.parametrize("chapter", ("13_gpu", "14_matmul_gpu", "15_flash_attention"))
def test_chapter(chapter):
    """The rows that a chapter shows are rows of the page, with some columns left out."""
    rows = [row for rows in tables(text_of("dev/cuda/README.md")).values() for row in rows]
    shown = re.findall(ROW, text_of(f"doc/{chapter}.md"), re.M)
    assert len(shown) >= 5, shown
    for number, name, cells in shown:
        assert any((number, name) == row[:2] and are_among(cells, row[2]) for row in rows), (number, name, cells)


def are_among(cells, all_cells):
    """Do these cells stand among all of them, in this order?"""
    rest = iter(all_cells.replace(" ", "").split("|"))
    return all(cell in rest for cell in cells.replace(" ", "").split("|"))


def test_ends():
    """The first and the last version of LayerNorm's layers, with the rows of the page, but for the bound ratio."""
    page, result = tables(text_of("dev/cuda/README.md")), ladder("layernorm", "--ends")
    assert result.returncode == 0 and result.stderr == "" and tables(result.stdout), result
    for layer, rows in tables(result.stdout).items():
        for row, expected in zip(rows, (page[layer][0], page[layer][-1])):
            without_ratio = [(number, version, cells.split("|")[:-1]) for number, version, cells in (row, expected)]
            assert without_ratio[0] == without_ratio[1], (layer, rows)


def test_all_columns():
    """They are those of the page and more. Their heads name them."""
    page, result = tables(text_of("dev/cuda/README.md")), ladder("layernorm", "--all-columns")
    heads = re.findall(r"^\| version +\|(.*)\|$", result.stdout, re.M)
    assert heads and all(len(head.split("|")) == 12 for head in heads), heads
    for layer, rows in tables(result.stdout).items():
        assert len(rows) == len(page[layer]), rows
        for (number, name, cells), expected in zip(rows, page[layer]):
            assert (number, name) == expected[:2] and are_among(expected[2], cells) and cells.count("|") == 11, cells


def test_real_shape():
    """Bounds at GPT-2's shape that follow from operations, of the threads or of the tensor cores, or from bytes."""
    page = tables(text_of("dev/cuda/README.md"))
    bound_of = {name: cells.split("|")[4].split() for _, name, cells in page["matmul forward, 128 x 128 x 128"]}
    flops = 2 * 16384 * 3072 * 768
    for name, tflops, part in (("16 bytes a lane", 66.9, "fp32"), ("llmc", 989.4, "tensor")):
        microseconds, by = bound_of[name]
        assert abs(float(microseconds) - 1e-6 * flops / tflops) <= 0.1 and by == part, bound_of
    update = {name: cells.split("|")[4].split() for _, name, cells in page["AdamW, 65536 parameters"]}
    assert abs(float(update["one kernel"][0]) - 30 * 124439808 / 3350e3) <= 0.1, update  # 30 bytes a parameter
    for _, name, cells in page["loss and its gradient, 8 x 16337"][1:]:  # a logit in and out; target and loss of a row
        assert abs(float(cells.split("|")[4].split()[0]) - 16384 * (50304 * 4 + 8) / 3350e3) <= 0.1, (name, cells)
    first = page["matmul backward, 128 x 128 x 128"][0][2].split("|")[4].split()
    sectors = 3 * flops / 32 + 16384 * 768 * 2 / 32 + 2 * 3072 * 768 * 4 / 32  # of the sums, dinp and dweight
    assert abs(float(first[0]) - 32 * sectors / (66.9e6 / 256 * 5120 / 132)) <= 0.1 and first[1] == "L2", first


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


# ---- Matrix multiplies on the CPU ----

LADDER = os.path.join(ROOT, "build", "ladder")


def cpu_ladder(*arguments):
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    return subprocess.run([LADDER, *arguments], capture_output=True, text=True, env=environment)


def names_of_steps():
    table = re.search(r"^static const Step steps\[\] = \{\n(.*?)^\};", text_of("dev/cpu/steps.h"), re.M | re.S)[1]
    return re.findall(r"^    \{\"([^\"]+)\"", table, re.M)


built = pytest.mark.skipif(not os.access(LADDER, os.X_OK), reason="no build/ladder (make build/ladder)")


@built
def test_steps():
    """The plain steps number by number are nowhere else: the unit tests have those with the compiler's vectors."""
    result = cpu_ladder("--check")
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and result.stderr == "" and lines[-1] == "All other steps agree with step 1.", result
    assert all(re.match(r"skip step \d+ \((bf16|AMX)\): \w", line) for line in lines[:-1]), lines


@built
def test_table_of_steps():
    """A small problem: each step has its row, with rates or with the reason why it is left out."""
    result = cpu_ladder("33", "50", "40")
    rows = re.findall(r"^\| +(\d+) (.*?) +\|(.*)", result.stdout, re.M)
    assert result.returncode == 0 and result.stderr == "", result
    assert [(int(number), name) for number, name, _ in rows] == list(enumerate(names_of_steps(), 1)), rows
    for number, name, cells in rows:
        assert "left out: " in cells or len(re.findall(r"[\d.]+", cells)) == (6 if int(number) <= 5 else 3), cells


def test_chapter_of_steps():
    """The chapter's table has the steps of the program."""
    rows = re.findall(r"^\| +(\d+) (.*?) +\|", text_of("doc/12_matmul_cpu.md"), re.M)
    assert [(int(number), name) for number, name in rows] == list(enumerate(names_of_steps(), 1)), rows
