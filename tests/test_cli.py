"""The command line as a user meets it: results, refusals, interruption."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

import bluegrad
from bluegrad.cli import app
from bluegrad.noise import kernel
from bluegrad.tasks.mechanisms import FAMILIES

RUNNER = CliRunner()
KEY = "00112233445566778899aabbccddeeff"


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """An .npz of 120 tiny images in three classes that a network can tell apart."""
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    x = (rng.integers(0, 60, (120, 8, 8)) + 70 * labels[:, None, None]).astype(np.uint8)
    np.savez(path, x=x, y=labels)
    return path


def invoke(*arguments: object):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


def train_options(images: Path, out: Path, *more: object) -> list[str]:
    options = ["train", "--data", images, "--out", out, "--epochs", 2, "--batch-size", 24, *more]
    return [str(option) for option in options]


def weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def metrics(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all((one[k] == other[k]).all() for k in one)


def test_plan_ranks_every_mechanism_without_data(tmp_path):
    done = invoke("plan", "--steps", 2000, "--epochs", 20, "--epsilon", 8, "--plot", tmp_path / "plan.png")
    assert done.exit_code == 0
    words = [line.replace(" *", "").split() for line in done.output.splitlines()]
    rows = [line for line in words if line and line[0] in FAMILIES]
    assert {row[0] for row in rows} == set(FAMILIES) - {"dense"}
    assert "left out: dense: takes long to find at 2000 steps (--slow)" in done.output
    noises = [float(row[-3]) for row in rows]
    assert noises == sorted(noises)
    by_name = {row[0]: row for row in rows}
    assert float(by_name["lambda-cgd"][-5]) == 26.1 and float(by_name["nu-dp-ftrl"][-5]) == 22.29  # published figures
    assert by_name["lambda-cgd"][-2:] == ["0", "2"], "no memory; two draws a step"
    assert int(by_name["nu-dp-ftrl-buffered"][-2]) <= 12
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.format == "PNG" and picture.width > 600


@pytest.mark.parametrize("mechanism", ["dp-sgd", "lambda-cgd", "nu-dp-ftrl", "square-root"])
def test_train_leaves_a_whole_run_folder(images, tmp_path, mechanism):
    out = tmp_path / "run"
    done = invoke(*train_options(images, out, "--mechanism", mechanism, "--epsilon", 5))
    assert done.exit_code == 0, done.output
    for word in ("test accuracy", "epsilon", "delta", "noise multiplier", "sampling law", "steps", "time"):
        assert word in done.output
    assert sorted(p.name for p in out.iterdir()) == [
        "curves.png", "ledger.json", "mechanism.json", "metrics.csv", "model.safetensors", "settings.json",
        "strategy.npz",
    ]  # fmt: skip
    ledger = json.loads((out / "ledger.json").read_text())
    assert ledger["steps_taken"] == ledger["steps_planned"] == 8  # 96 training images in batches of 24, twice
    assert 4.999 < ledger["guarantee"]["epsilon"] <= 5.0
    rows = metrics(out)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[0]["epsilon"]) < float(rows[1]["epsilon"]) <= 5.0
    with Image.open(out / "curves.png") as picture:
        assert picture.format == "PNG" and picture.width > 600


def test_poisson_and_ghost_train(images, tmp_path):
    options = ["--mechanism", "dp-sgd", "--sampling", "poisson", "--grad-sample-mode", "ghost"]
    done = invoke(*train_options(images, tmp_path / "run", *options, "--physical-batch-size", 10))
    assert done.exit_code == 0, done.output
    law = json.loads((tmp_path / "run" / "ledger.json").read_text())["mechanism"]["participation"]
    assert law["law"] == "poisson" and law["rate"] == 0.25


def test_training_learns_at_a_generous_epsilon(images, tmp_path):
    done = invoke(*train_options(images, tmp_path / "run", "--epsilon", 200, "--epochs", 20, "--lr", 1))
    assert done.exit_code == 0, done.output
    rows = metrics(tmp_path / "run")
    assert float(rows[-1]["test_accuracy"]) >= 0.9


def test_compare_puts_mechanisms_side_by_side(images, tmp_path):
    out = tmp_path / "both"
    options = ["compare", "--data", images, "--out", out, "--epochs", 2, "--batch-size", 24, "--seeds", 2]
    done = invoke(*options, "--mechanisms", "dp-sgd,lambda-cgd", "--lr", "0.5,1")
    assert done.exit_code == 0, done.output
    assert "dp-sgd" in done.output and "lambda-cgd" in done.output
    assert (out / "comparison.png").stat().st_size > 10_000
    epsilons = [json.loads(p.read_text())["guarantee"]["epsilon"] for p in out.glob("*/ledger.json")]
    assert len(epsilons) == 4 and max(epsilons) - min(epsilons) < 1e-6
    again = invoke(*options, "--mechanisms", "dp-sgd,lambda-cgd", "--lr", "0.5,1", "--resume")
    assert again.exit_code == 0 and "dp-sgd" in again.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epsilon", "0"], ["epsilon=0", "(0, inf)"]),
        (["--epsilon", "nan"], ["epsilon=nan", "finite"]),
        (["--delta", "1"], ["delta=1.0", "(0, 1)"]),
        (["--delta", "0"], ["delta=0.0", "(0, 1)"]),
        (["--parameter", "1.0"], ["lam=1.0", "[0, 1)"]),
        (["--parameter", "-0.5"], ["lam=-0.5", "[0, 1)"]),
        (["--mechanism", "nu-dp-ftrl", "--parameter", "1"], ["nu=1.0", "[0, 1)"]),
        (["--mechanism", "dp-sgd", "--parameter", "0.5"], ["parameter=0.5", "dp-sgd"]),
        (["--parameter", "high"], ["parameter='high'", "auto"]),
        (["--mechanism", "magic"], ["mechanism='magic'", "lambda-cgd"]),
        (["--epochs", "0"], ["epochs=0", "at least 1"]),
        (["--batch-size", "1000"], ["batch_size=1000", "larger than the data set of 96"]),
        (["--lr", "0"], ["lr=0.0"]),
        (["--momentum", "1"], ["momentum=1.0"]),
        (["--clip", "-1"], ["clip=-1.0"]),
        (["--sampling", "poisson"], ["lambda_cgd", "Poisson", "identity"]),
        (["--sampling", "sorted"], ["sampling='sorted'", "fixed"]),
        (["--data", "/nowhere/at-all"], ["/nowhere/at-all", "no such file"]),
        (["--test-data", "/nowhere/at-all"], ["/nowhere/at-all", "no such file"]),
        (["--unsafe-noise-key-file", "/nowhere/key"], ["/nowhere/key"]),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(images, tmp_path, options, words):
    done = invoke(*train_options(images, tmp_path / "run"), *options)
    assert done.exit_code == 2
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.output
    assert all(word in done.output for word in words), done.output
    assert not (tmp_path / "run" / "settings.json").exists()  # nothing left behind that blocks the next try


def test_plan_refuses_epochs_that_do_not_divide_steps():
    done = invoke("plan", "--steps", 100, "--epochs", 7)
    assert done.exit_code == 2 and "epochs=7" in done.output and "steps=98 or steps=105" in done.output


def test_an_option_of_the_wrong_type_is_exit_code_2():
    assert invoke("train", "--epochs", "many").exit_code == 2


def test_a_folder_with_a_run_is_not_overwritten(images, tmp_path):
    out = tmp_path / "run"
    assert invoke(*train_options(images, out)).exit_code == 0
    before = weights(out)
    refused = invoke(*train_options(images, out))
    assert refused.exit_code == 2 and "--resume" in refused.output
    other = invoke(*train_options(images, out, "--clip", 2, "--resume"))
    assert other.exit_code == 2 and "clip=2.0" in other.output and "1.0" in other.output
    finished = invoke(*train_options(images, out, "--resume"))
    assert finished.exit_code == 0 and "test accuracy" in finished.output
    assert same(before, weights(out))


def test_resume_without_out_or_with_a_damaged_checkpoint(images, tmp_path):
    assert invoke("train", "--resume").exit_code == 2
    out = tmp_path / "run"
    out.mkdir()
    (out / "checkpoint.pt").write_bytes(b"not a checkpoint")
    done = invoke(*train_options(images, out, "--resume"))
    assert done.exit_code == 2 and str(out / "checkpoint.pt") in done.output


def test_full_disk_is_told_and_keeps_the_last_checkpoint(images, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device", str(out))

    monkeypatch.setattr(os, "fsync", full)
    done = invoke(*train_options(images, out))
    assert done.exit_code == 2 and "No space left" in done.output
    assert not list(out.glob(".*.part"))


def start(images: Path, out: Path, key_file: Path, *more: str) -> subprocess.Popen[bytes]:
    options = train_options(images, out, "--epochs", 15, "--checkpoint-seconds", 0, *more)
    command = [sys.executable, "-m", "bluegrad.cli", *options, "--unsafe-noise-key-file", str(key_file)]
    # one thread each: runs beside each other on few cores would wait for one another's threads
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted(images, tmp_path_factory) -> tuple[Path, dict, dict]:
    """A key's file, the weights of the whole run with it, and those with another key."""
    folder = tmp_path_factory.mktemp("whole")
    for name, text in (("key", KEY), ("other", KEY[::-1])):
        (folder / f"{name}.hex").write_text(text)
    runs = [start(images, folder / name, folder / f"{name}.hex") for name in ("key", "other")]
    for run in runs:
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors
    return folder / "key.hex", weights(folder / "key"), weights(folder / "other")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_an_interrupted_run_ends_with_the_weights_of_the_uninterrupted_one(
    images, uninterrupted, tmp_path, number, code
):
    key_file, whole, other = uninterrupted
    out = tmp_path / "broken"
    process = start(images, out, key_file)
    wait_for(out / "checkpoint.pt", process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code, errors
    assert not (out / "model.safetensors").exists(), "the run was over before the signal"
    assert (out / "checkpoint.pt").stat().st_mode & 0o077 == 0, "the checkpoint holds the noise key"
    again = start(images, out, key_file, "--resume")
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert same(weights(out), whole)
    assert not same(weights(out), other)  # the comparison can fail
    assert not (out / "checkpoint.pt").exists(), "the key is gone once the run is over"


def test_test_data_without_data_are_not_ignored(tmp_path):
    done = invoke("train", "--test-data", tmp_path / "missing", "--out", tmp_path / "run")
    assert done.exit_code == 2 and "test_data" in done.output and "give data as well" in done.output


def audit_options(folder: Path, *more: object) -> list[object]:
    files = ["--plot", folder / "audit.png", "--out", folder / "audit.json"]
    return ["audit", "--steps", 8, "--epochs", 2, "--confidence", 1.0 - 1e-9, *files, *more]


def test_audit_upholds_true_claims(tmp_path):
    done = invoke(*audit_options(tmp_path, "--repetitions", 20_000))
    assert done.exit_code == 0, done.output
    records = json.loads((tmp_path / "audit.json").read_text())
    assert [record["mechanism"] for record in records] == list(FAMILIES)
    assert {record["verdict"] for record in records} == {"upheld"}
    assert all(0.3 < record["epsilon"] < record["fitted"] <= record["claimed"] == 4.0 for record in records)
    lines = {line.split()[0]: line.split() for line in done.output.splitlines() if line.split()}
    assert all(lines[name][-1] == "upheld" for name in FAMILIES)
    assert "epsilon 4 claimed at delta 1e-05" in " ".join(done.output.split())
    with Image.open(tmp_path / "audit.png") as picture:
        assert picture.format == "PNG" and picture.width > 600


def test_audit_refutes_a_mechanism_with_too_little_noise(tmp_path, monkeypatch):
    from bluegrad.tasks import audits

    def quiet(claim):
        return audits_replay(replace(claim, noise_multiplier=0.7 * claim.noise_multiplier))

    audits_replay = audits.Replay
    monkeypatch.setattr(audits, "Replay", quiet)
    done = invoke(*audit_options(tmp_path, "--mechanism", "lambda-cgd", "--repetitions", 20_000))
    assert done.exit_code == 1 and "refuted" in done.output
    (record,) = json.loads((tmp_path / "audit.json").read_text())
    assert record["reasons"] == ["curve", "noise"] and record["fitted"] > 4.0


def test_audit_of_training_and_of_drawn_batches(tmp_path):
    done = invoke(*audit_options(tmp_path, "--mechanism", "bisr", "--level", "training", "--epsilon", 8))
    assert done.exit_code == 0 and json.loads((tmp_path / "audit.json").read_text())[0]["level"] == "training"
    options = ("--parameter", 2, "--sampling", "cyclic-poisson", "--epsilon", 0.5, "--repetitions", 80_000)
    done = invoke(*audit_options(tmp_path, "--mechanism", "toeplitz", *options))
    assert done.exit_code == 0 and "cyclic Poisson (amplified)" in " ".join(done.output.split())


@pytest.mark.parametrize(
    "options, message",
    [
        (["--mechanism", "magic"], "mechanism='magic'"),
        (["--sampling", "dice"], "sampling='dice': is not known; choose one of fixed, balls-in-bins"),
        (["--level", "deep"], "level='deep'"),
        (["--steps", 9], "epochs=2: must divide steps=9"),
        (["--repetitions", 50], "repetitions=50: too few"),
        (["--confidence", 1.5], "confidence=1.5"),
        (["--parameter", 0.5], "parameter=0.5: means something else for each"),
        (["--parameter", "x", "--mechanism", "dp-sgd"], "parameter='x'"),
        (["--period", 2], "period=2: sampling 'fixed' has none"),
        (["--sampling", "cyclic-poisson", "--period", 5], "period=5: is more than the 4 batches of an epoch"),
        (["--mechanism", "lambda-cgd", "--sampling", "poisson"], "lambda_cgd(steps=8"),
        (["--mechanism", "none.npz"], "none.npz"),
    ],
)
def test_audit_refuses_bad_options(tmp_path, options, message):
    done = invoke(*audit_options(tmp_path, *options))
    assert done.exit_code == 2 and message in done.stderr
    assert not list(tmp_path.iterdir())


def test_doctor_reports_the_installation():
    done = invoke("doctor")
    assert done.exit_code == 0
    rows = dict(line.split() for line in done.output.splitlines() if line.startswith(("bluegrad", "torch")))
    assert rows["bluegrad"] == bluegrad.__version__ and rows["torch"] == torch.__version__
    kind = kernel.choose(None).name
    assert (f"native ({kind})" if kind != "fallback" else "fallback (NumPy)") in done.output
    assert "a second" in done.output and "kernels agree" in done.output and "gpu" in done.output


def test_doctor_finds_a_kernel_with_other_bits(monkeypatch):
    class Other(type(kernel.choose("fallback"))):
        def accumulate(self, out, factors, *rest):
            super().accumulate(out, np.nextafter(factors, np.float32(9)), *rest)

    monkeypatch.setitem(kernel.backends(), "other", Other())
    done = invoke("doctor")
    assert done.exit_code == 1 and "no: other" in done.output


@pytest.mark.parametrize(
    "families",
    [("dp-sgd", "lambda-cgd", "bsr", "tree-full"), pytest.param(tuple(FAMILIES), marks=pytest.mark.slow, id="all")],
)
def test_plan_shows_noise_with_and_without_amplification(families, tmp_path, monkeypatch):
    for name in set(FAMILIES) - set(families):
        monkeypatch.delitem(FAMILIES, name)
    options = ["--steps", 20, "--epochs", 4, "--epsilon", 2, "--plot", tmp_path / "plan.png"]
    done = invoke("plan", *options, "--sampling", "balls-in-bins")
    assert done.exit_code == 0, done.output
    lines = [line.replace(" *", "").split() for line in done.output.splitlines()]
    rows = {line[0]: line for line in lines if line and line[0] in FAMILIES}
    assert {"dp-sgd", "lambda-cgd", "bsr"} <= set(rows) <= set(families)
    assert "left out: tree-full" in done.output
    for row in rows.values():
        assert 0.0 < float(row[-4]) < float(row[-3]), row  # noise, noise without amplification
    assert "balls in bins (amplified)" in done.output
    wrong = invoke("plan", *options, "--sampling", "uniform")
    assert wrong.exit_code == 2 and "sampling='uniform'" in wrong.output


def test_compare_takes_a_sampling_for_each_mechanism(images, tmp_path):
    options = ["--data", images, "--epochs", 2, "--batch-size", 24, "--epsilon", 5, "--out", tmp_path / "c"]
    done = invoke(
        "compare", *options, "--mechanisms", "dp-sgd,dp-sgd,lambda-cgd", "--sampling", "fixed,poisson,balls-in-bins"
    )
    assert done.exit_code == 0, done.output
    for label in ("dp-sgd, fixed", "dp-sgd, poisson", "lambda-cgd, balls-in-bins"):
        assert label in done.output
    folders = {path.name for path in (tmp_path / "c").iterdir() if path.is_dir()}
    assert folders == {"dp-sgd-fixed-seed0", "dp-sgd-poisson-seed0", "lambda-cgd-balls-in-bins-seed0"}
    noise = {
        name: json.loads((tmp_path / "c" / name / "mechanism.json").read_text())["noise_multiplier"] for name in folders
    }
    assert noise["lambda-cgd-balls-in-bins-seed0"] < noise["dp-sgd-fixed-seed0"]
    for wrong in (["--sampling", "fixed,poisson"], ["--sampling", "uniform"], ["--lr", "1,2"], ["--lr", "x"]):
        refused = invoke("compare", *options, "--mechanisms", "dp-sgd,lambda-cgd,nu-dp-ftrl", *wrong)
        assert refused.exit_code == 2 and wrong[0][2:] in refused.output
    same_twice = invoke("compare", *options, "--mechanisms", "dp-sgd,dp-sgd")
    assert same_twice.exit_code == 2 and "distinct" in same_twice.output


def test_optimize_finds_the_least_noise_under_balls_in_bins(tmp_path):
    options = ["--steps", 20, "--epochs", 4, "--epsilon", 2]
    for sampling in ("fixed", "balls-in-bins"):
        done = invoke("optimize", "buffered", *options, "--size", 1, "--sampling", sampling, "--out",
                      tmp_path / f"{sampling}.npz")  # fmt: skip
        assert done.exit_code == 0, done.output
        assert ("x noise multiplier" in done.output) == (sampling != "fixed")
    refused = invoke("optimize", "banded", *options, "--sampling", "balls-in-bins", "--out", tmp_path / "b.npz")
    assert refused.exit_code == 2 and "BallsInBins" in refused.output


def test_train_draws_noise_from_a_cipher(images, tmp_path):
    pytest.importorskip("cryptography")
    done = invoke(*train_options(images, tmp_path / "run", "--secure-noise"))
    assert done.exit_code == 0, done.output
    assert "AES-256" in json.loads((tmp_path / "run" / "ledger.json").read_text())["noise_generator"]
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    both = ["--secure-noise", "--unsafe-noise-key-file", key_file]
    refused = invoke(*train_options(images, tmp_path / "other", *both))
    assert refused.exit_code == 2 and "secure_noise=True" in refused.output
