"""dev/bench/bench_cpu.py: the table of our times and PyTorch's on the CPU, on a small model."""
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BENCH = [sys.executable, os.path.join(ROOT, "dev/bench/bench_cpu.py")]


@pytest.mark.long
def test_table():
    """Each precision has a row with the time of our step, and PyTorch's where this Python has it."""
    done = subprocess.run([*BENCH, "--init", "d6", "--shapes", "1x8", "--threads", "2"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:4]]
    assert [row[:2] for row in rows] == [["1x8", "fp32"], ["1x8", "bf16"]], done.stdout
    assert all(re.fullmatch(r"[\d.]+", row[2]) and float(row[2]) > 0.0 for row in rows), done.stdout
    assert all(re.search(r"\d+% of \d+ GFLOP/s$", " ".join(row)) for row in rows), done.stdout
    assert ("no PyTorch" in done.stdout) != bool(re.fullmatch(r"[\d.]+", rows[0][6])), done.stdout
