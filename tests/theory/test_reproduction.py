"""The benchmark that reproduces the paper: its quick figures are drawn, and their numbers are what they should be."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "theory.py"


def drawn(name, folder):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), name, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / f"theory-{name}.png").read_bytes().startswith(b"\x89PNG")
    with (folder / f"theory-{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_equal_error_and_sensitivity_and_yet_one_diverges(tmp_path):
    rows = drawn("pair", tmp_path)
    for early, late in zip(rows[::2], rows[1::2]):
        assert float(early["squared_error"]) == pytest.approx(float(late["squared_error"]), rel=1e-9)
        assert float(early["sensitivity"]) == pytest.approx(float(late["sensitivity"]), rel=1e-9)
    early, late = ([float(row["final_error"]) for row in rows[start::2]] for start in (0, 1))
    assert early[-1] == pytest.approx(early[-2], rel=1e-6)
    assert late[-1] == pytest.approx(2 * late[-2], rel=0.05)


@pytest.mark.slow
def test_positive_signs_are_worse_than_independent_noise(tmp_path):
    rows = drawn("signs", tmp_path)
    for adding, white, cancelling in zip(rows[::3], rows[1::3], rows[2::3]):
        errors = [float(row["private_error"]) for row in (cancelling, white, adding)]
        assert errors == sorted(errors)


@pytest.mark.slow
def test_measured_exponents_are_near_the_stated_ones(tmp_path):
    for row in drawn("rates", tmp_path):
        # logarithms lower the exponents of the mechanisms that have them
        assert abs(float(row["measured"]) - float(row["stated"])) < (0.01 if row["mechanism"][0] in "Dd" else 0.26)
