"""The ladder of matrix multiplies (dev/cpu): its program checks every step; its chapter and picture fit the code."""
import os
import re
import subprocess

import pytest

from tools import ROOT, text_of

LADDER = os.path.join(ROOT, "build", "ladder")


def run(*arguments):
    environment = dict(os.environ, OMP_NUM_THREADS="2")
    return subprocess.run([LADDER, *arguments], capture_output=True, text=True, env=environment)


def names_of_steps():
    table = re.search(r"^static const Step steps\[\] = \{\n(.*?)^\};", text_of("dev/cpu/steps.h"), re.M | re.S)[1]
    return re.findall(r"^    \{\"([^\"]+)\"", table, re.M)


built = pytest.mark.skipif(not os.access(LADDER, os.X_OK), reason="no build/ladder (make build/ladder)")


@built
def test_check():
    """The plain steps number by number are nowhere else: the unit tests have those with the compiler's vectors."""
    result = run("--check")
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and result.stderr == "" and lines[-1] == "All other steps agree with step 1.", result
    assert all(re.match(r"skip step \d+ \((bf16|AMX)\): \w", line) for line in lines[:-1]), lines


@built
def test_table():
    """A small problem: each step has its row, with rates or with the reason why it is left out."""
    result = run("33", "50", "40")
    rows = re.findall(r"^\| +(\d+) (.*?) +\|(.*)", result.stdout, re.M)
    assert result.returncode == 0 and result.stderr == "", result
    assert [(int(number), name) for number, name, _ in rows] == list(enumerate(names_of_steps(), 1)), rows
    for number, name, cells in rows:
        rates = re.findall(r"[\d.]+", cells)
        assert "left out: " in cells or len(rates) == (6 if int(number) <= 5 else 3), (name, cells)
        assert "left out: " in cells or all(float(rate) > 0 for rate in rates[1::3]), (name, cells)


def test_chapter():
    """The chapter's table has the steps of the program."""
    rows = re.findall(r"^\| +(\d+) (.*?) +\|", text_of("doc/04_matmul_cpu.md"), re.M)
    assert [(int(number), name) for number, name in rows] == list(enumerate(names_of_steps(), 1)), rows
