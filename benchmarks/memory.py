"""Peak memory and time of a private training step for every mechanism, beside DP-SGD, each in its own process.

A linear model of 25 million parameters under ghost clipping, 24 steps. Memory is the process's peak resident set
beyond DP-SGD's, in model copies. Usage: python benchmarks/memory.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bluegrad as bg

SIDE, STEPS, REPEATS = 5000, 24, 3
STRATEGIES = {
    "dp-sgd": lambda: bg.identity(STEPS),
    "lambda-cgd": lambda: bg.lambda_cgd(STEPS, 0.9),
    "noise of 4 bands": lambda: bg.banded_inverse_toeplitz([1.0, -0.5, -0.125, -0.0625], STEPS),
    "toeplitz C of 4 bands": lambda: bg.toeplitz([1.0, 0.5, 0.375, 0.3125], STEPS),
    "nu-dp-ftrl": lambda: bg.nu_dp_ftrl(STEPS, 0.05),
}


def measure(name: str) -> dict[str, float]:
    """Peak resident bytes of this process and the median seconds of a step, forward and backward included."""
    model = nn.Linear(SIDE, SIDE, bias=False)
    data = TensorDataset(torch.randn(4 * STEPS, SIDE), torch.randint(SIDE, (4 * STEPS,)))
    engine = bg.PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=4),
        max_grad_norm=1.0,
        strategy=STRATEGIES[name](),
        noise_multiplier=1.0,
        grad_sample_mode="ghost",
    )
    times = []
    for x, y in loader:
        began = time.perf_counter()
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"peak": peak, "seconds": median(times)}


def least(name: str) -> dict[str, float]:
    """The least peak and time of several processes: the allocator adds a copy by chance, but never saves one."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", name]
    runs = [json.loads(subprocess.check_output(command, text=True)) for _ in range(REPEATS)]
    return {key: min(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    """Measure every mechanism in a process of its own, print a table and write it as CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=STRATEGIES, help="measure one mechanism in this process")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    measured = {name: least(name) for name in STRATEGIES}
    base, copy = measured["dp-sgd"], 4 * SIDE * SIDE
    rows = [
        {
            "mechanism": name,
            "extra_model_copies": round((m["peak"] - base["peak"]) / copy, 2),
            "stated_memory": STRATEGIES[name]().memory,
            "step_time_over_dp_sgd": round(m["seconds"] / base["seconds"], 2),
            "peak_MB": round(m["peak"] / 1e6),
        }
        for name, m in measured.items()
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "memory.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(path.read_text())


if __name__ == "__main__":
    main()
