"""`bluegrad optimize`: saves what trains, continues when interrupted, refuses what is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import bluegrad as bg
from bluegrad.cli import app
from bluegrad.tasks.search import SEARCHES, Search

RUNNER = CliRunner()


def invoke(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("family", SEARCHES)
def test_every_family_is_found_and_saved(family, tmp_path):
    out = tmp_path / "c.npz"
    done = invoke("optimize", family, "--steps", 60, "--epochs", 3, "--out", out)
    assert done.exit_code == 0, done.output
    assert "converged" in done.output and "yes" in done.output
    stored = bg.load_strategy(out)
    law, work = bg.FixedEpochs(60, 3), bg.PrefixSum(60)
    assert stored.optimization["value"] == pytest.approx(bg.rmse(stored, work, law), rel=1e-9)
    assert bg.rmse(stored, work, law) < 0.7 * bg.rmse(bg.identity(60), work, law)
    assert [p.name for p in tmp_path.iterdir()] == ["c.npz"]


def test_the_workload_is_the_given_one(tmp_path):
    rates = np.linspace(1, 0.1, 60)
    np.savetxt(tmp_path / "rates.txt", rates)
    out = tmp_path / "c.npz"
    more = ["--momentum", 0.9, "--weight-decay", 0.01, "--rates", tmp_path / "rates.txt", "--loss", "max_error"]
    done = invoke("optimize", "toeplitz", "--steps", 60, "--epochs", 3, "--size", 4, "--out", out, *more)
    assert done.exit_code == 0, done.output
    work = bg.Sgd(60, momentum=0.9, weight_decay=0.01, learning_rates=rates)
    value = bg.max_error(bg.load_strategy(out), work, bg.FixedEpochs(60, 3))
    assert bg.load_strategy(out).optimization["value"] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(("options", "words"), [
    (["blt9", "--steps", 60, "--epochs", 3], "family='blt9'"),
    (["toeplitz", "--steps", 60, "--epochs", 7], "epochs=7"),
    (["toeplitz", "--steps", 60, "--epochs", 3, "--size", 61], "bands=61"),
    (["toeplitz", "--steps", 60, "--epochs", 3, "--loss", "mean"], "loss='mean'"),
    (["lambda-cgd", "--steps", 60, "--epochs", 3, "--size", 2], "size=2"),
    (["toeplitz", "--steps", 60, "--epochs", 3, "--momentum", 1], "momentum=1.0"),
    (["toeplitz", "--steps", 60, "--epochs", 3, "--rates", "missing.txt"], "missing.txt"),
])  # fmt: skip
def test_a_users_mistake_is_one_line(options, words, tmp_path):
    done = invoke("optimize", *options, "--out", tmp_path / "c.npz")
    assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output
    assert not (tmp_path / "c.npz").exists()


def test_the_file_name_is_checked_before_the_search(tmp_path):
    done = invoke("optimize", "toeplitz", "--steps", 60, "--epochs", 3, "--out", tmp_path / "c.txt")
    assert done.exit_code == 2 and ".npz" in done.output
    (tmp_path / "rates.txt").write_text("0.1\nfast\n")
    more = ["--rates", tmp_path / "rates.txt", "--out", tmp_path / "c.npz"]
    done = invoke("optimize", "toeplitz", "--steps", 60, "--epochs", 3, *more)
    assert done.exit_code == 2 and "one number a line" in done.output


def test_a_killed_search_continues(tmp_path):
    out = tmp_path / "c.npz"
    options = ["toeplitz", "--steps", "200000", "--epochs", "20", "--size", "64", "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "bluegrad.cli", "optimize", *options], stdout=subprocess.PIPE)
    journal = tmp_path / "c.search"
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size > 2000):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not out.exists(), "the search was over before the signal"
    search = Search("toeplitz", 200_000, 20, size=64)
    best = search.run(out, lambda iteration, value: None)
    direct = bg.optimize.toeplitz(bg.PrefixSum(200_000), bg.FixedEpochs(200_000, 20), 64)
    assert (best.coefficients() == direct.coefficients()).all()
    assert not journal.exists()
