"""Several processes train what one would: weights to float tolerance, the noise bit for bit, no hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bluegrad as bg
import distributed_worker as worker
from bluegrad.training.ranks import Ranks

TESTS = Path(worker.__file__).parent


def torchrun(processes: int, *arguments: object, timeout: float = 500.0) -> subprocess.CompletedProcess[str]:
    """Start processes on this machine, each on one thread, as a user would."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
        *map(str, arguments),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)


def together(processes: int, jobs: list[dict], folder: Path) -> list[torch.Tensor]:
    """The weights of every job, done by so many processes."""
    folder.mkdir()
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = torchrun(processes, TESTS / "distributed_worker.py", folder / "jobs.json", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{len(jobs)} jobs on {processes} processes" in done.stdout
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(len(jobs))]


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_what_one_would(processes, tmp_path):
    jobs = [{"case": case, "scale": scale} for case in worker.CASES for scale in (1.0, 0.0)]
    for job, weights in zip(jobs, together(processes, jobs, tmp_path / "jobs")):
        alone = worker.run(**job)
        assert torch.isfinite(weights).all()
        if job["scale"] == 0.0:
            assert torch.equal(weights, alone), f"{job}: the noise differs"
        else:
            assert torch.allclose(weights, alone, atol=2e-6), job
            assert not torch.allclose(weights, worker.run(job["case"], scale=0.0), atol=1e-3), "gradients count"


def test_another_number_of_processes_continues_the_run(tmp_path):
    stopped = [
        {"case": case, "scale": scale, "stop": 5, "checkpoint": str(tmp_path / f"{number}-{scale}.pt")}
        for number, case in enumerate(worker.CASES)
        for scale in (1.0, 0.0)
    ]
    together(2, stopped, tmp_path / "begun")
    for job in stopped:
        resumed = worker.run(job["case"], scale=job["scale"], checkpoint=job["checkpoint"], resume=True)
        whole = worker.run(job["case"], scale=job["scale"])
        assert torch.equal(resumed, whole) if job["scale"] == 0.0 else torch.allclose(resumed, whole, atol=2e-6)
        worker.run(job["case"], scale=job["scale"], stop=5, checkpoint=job["checkpoint"])  # and the other way round
    on = [{**job, "stop": worker.STEPS, "resume": True} for job in stopped]
    for job, weights in zip(on, together(2, on, tmp_path / "continued")):
        whole = worker.run(job["case"], scale=job["scale"])
        assert torch.equal(weights, whole) if job["scale"] == 0.0 else torch.allclose(weights, whole, atol=2e-6)


def test_wrappers_that_sum_before_clipping_are_refused():
    model = torch.nn.Linear(2, 2)
    with pytest.raises(bg.Unsupported, match="before they are clipped"):
        from bluegrad.training.admission import check_model

        wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
        check_model(wrapped, torch.optim.SGD(model.parameters(), lr=0.1), "hooks")


def test_one_process_alone_needs_no_group():
    alone = Ranks()
    assert alone.first and alone.total(1.0, 2.5) == [1.0, 2.5] and alone.any(True, False) == [True, False]
    assert alone.shared({"a": 1}) == {"a": 1} and alone.gathered(3) == [3]
    tensor = torch.ones(2)
    alone.sum_([tensor])
    assert tensor.tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_torchrun_starts_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from bluegrad.cli import app

    rng = torch.Generator().manual_seed(0)
    import numpy as np

    labels = np.arange(120) % 3
    x = (torch.randint(0, 60, (120, 8, 8), generator=rng).numpy() + 70 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "tiny.npz", x=x, y=labels)
    (tmp_path / "key").write_text("00112233445566778899aabbccddeeff")
    options = [
        "train", "--data", tmp_path / "tiny.npz", "--epochs", 2, "--batch-size", 24, "--mechanism", "square-root",
        "--unsafe-noise-key-file", tmp_path / "key",
    ]  # fmt: skip
    done = torchrun(2, "-m", "bluegrad.cli", *options, "--out", tmp_path / "two")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Private training") == 1, "the first process alone prints"
    alone = CliRunner().invoke(app, [*map(str, options), "--out", str(tmp_path / "one")])
    assert alone.exit_code == 0, alone.output
    from safetensors.numpy import load_file

    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert all(np.allclose(one[k], two[k], atol=1e-5) for k in one)
