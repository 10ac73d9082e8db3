"""Every program that scripts/test.sh has told make to build is there: one that does not build is a failed test. Every
suite is in one of them. When all tests have run, make has nothing to do: no test changes what others are built of."""
import glob
import os
import re
import subprocess

import pytest

from tools import ROOT, path


@pytest.mark.parametrize("target", os.environ.get("TEST_TARGETS", "").split())
def test_is_built(target):
    assert os.access(target, os.X_OK), f"{target} does not build: see build/logs/"


def suites_of(program):
    return subprocess.check_output([os.path.join(ROOT, program), "--list"], text=True).split()


@pytest.mark.skipif("TEST_TARGETS" not in os.environ, reason="scripts/test.sh builds all suites")
def test_every_suite_is_built():
    sources = glob.glob(os.path.join(ROOT, "dev", "test", "*", "test_*.c"))
    programs = [target for target in os.environ["TEST_TARGETS"].split()
                if os.path.basename(target) in ("unit_tests", "test_trainer", "test_llama3", "test_comm")]
    built = {suite for program in programs for suite in suites_of(program)}
    missing = {os.path.basename(source)[len("test_"):-len(".c")] for source in sources} - built
    assert len(sources) > 30 and not missing, missing


def test_parts_are_the_whole(request):
    """Each test of a suite runs in one of its parts."""
    programs = [f"{build}/unit_tests" for build in request.config.builds]
    program = next((name for name in programs if os.path.exists(os.path.join(ROOT, name))
                    and "args" in suites_of(name)), None)
    if program is None:
        pytest.skip("no unit tests here (make tests)")

    def ran(*words):
        result = subprocess.run([program, *words, "args"], cwd=ROOT, check=True, capture_output=True, text=True)
        return re.findall(r"^ok   (.*)$", result.stdout, re.M)

    parts = [ran("--part", f"{part}/3") for part in (1, 2, 3)]
    assert all(parts) and sorted(sum(parts, [])) == sorted(ran()), parts


@pytest.mark.skipif("TEST_TARGETS" not in os.environ, reason="only scripts/test.sh knows how it has built")
def test_nothing_is_left_to_build():
    """Runs last (conftest.py)."""
    logs = path("again")
    os.mkdir(logs)
    subprocess.run(["make", "-n", "-k", "-f", "build/logs/builds.mk", f"LOGS={logs}", "all"], cwd=ROOT, check=True,
                   capture_output=True)
    said = [line for name in os.listdir(logs) for line in open(os.path.join(logs, name), encoding="utf-8")]
    assert said and not [line for line in said if not line.startswith("make")], said
