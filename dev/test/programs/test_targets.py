"""Every program that scripts/test.sh has told make to build is there: one that does not build is a failed test."""
import os

import pytest


@pytest.mark.parametrize("target", os.environ.get("TEST_TARGETS", "").split())
def test_is_built(target):
    assert os.access(target, os.X_OK), f"{target} does not build: see build/logs/"
