"""Tests that lead the trainer through its errors, its numbers and its files, again with a sanitized trainer."""
import os
import subprocess
import sys

import pytest

from tools import LIMIT, ROOT

BUILD = "build/sanitize"
pytestmark = [pytest.mark.long, pytest.mark.skipif(not os.path.exists(f"{ROOT}/{BUILD}/train_gpt2"),
                                                   reason=f"no {BUILD}/train_gpt2 (make sanitize)")]


@pytest.mark.parametrize("name", ("test_faults", "test_numbers", "test_resume"))
def test_sanitized(name):
    command = [sys.executable, "-m", "pytest", "-q", f"--builds={BUILD}", f"dev/test/programs/{name}.py"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert ran.returncode == 0, ran.stdout
