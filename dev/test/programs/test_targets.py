"""Every program that scripts/test.sh has told make to build is there: one that does not build is a failed test. Every
suite is in one of them. When all tests have run, make has nothing to do: no test changes what others are built of."""
import glob
import os
import subprocess

import pytest

from tools import ROOT, path, text_of

TARGETS = os.environ.get("TEST_TARGETS", "").split()
pytestmark = pytest.mark.skipif(not TARGETS, reason="only scripts/test.sh knows what it has built, and how")


@pytest.mark.parametrize("target", TARGETS)
def test_is_built(target):
    assert os.access(target, os.X_OK), f"{target} does not build: see build/logs/"


def test_every_suite_is_built():
    sources = [name for name in glob.glob(os.path.join(ROOT, "dev", "test", "*", "test_*.c"))
               if "\nTEST(" in text_of(name)]
    programs = [target for target in TARGETS
                if os.path.basename(target) in ("unit_tests", "test_trainer", "test_llama3", "test_comm")]
    built = {suite for program in programs
             for suite in subprocess.check_output([os.path.join(ROOT, program), "--list"], text=True).split()}
    missing = {os.path.basename(source)[len("test_"):-len(".c")] for source in sources} - built
    assert len(sources) > 30 and not missing, missing


def test_nothing_is_left_to_build():
    """Runs last (conftest.py)."""
    logs = path("again")
    os.mkdir(logs)
    subprocess.run(["make", "-n", "-k", "-f", "build/logs/builds.mk", f"LOGS={logs}", "all"], cwd=ROOT, check=True,
                   capture_output=True)
    said = [line for name in os.listdir(logs) for line in open(os.path.join(logs, name), encoding="utf-8")]
    assert said and not [line for line in said if not line.startswith("make")], said
