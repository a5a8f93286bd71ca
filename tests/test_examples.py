"""Every example runs from top to bottom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path):
    done = subprocess.run([sys.executable, str(path), "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout


def test_examples_exist():
    assert EXAMPLES
