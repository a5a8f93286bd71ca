"""Time and state of a noise step of every mechanism, against one plain draw of as many normals, in one process.

A leaf of a million float32 elements, 1,000 steps of which the last 50 or so are timed. Each round times the plain
draws and every mechanism in turn; ratios are of the medians. "kernel" is this package's draw, "torch" is
`Tensor.normal_`. Usage: python benchmarks/streaming.py [--size N] [--steps N] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import bluegrad as bg
from bluegrad.noise import kernel

ROUNDS, TIMED = 15, 3


def strategies(n: int) -> dict[str, bg.Strategy]:
    """Every kind of stream."""
    work = bg.PrefixSum(n)
    return {
        "dp-sgd": bg.identity(n),
        "lambda-cgd": bg.lambda_cgd(n, 0.95),
        "lambda-cgd, column-normalised": bg.column_normalized(bg.lambda_cgd(n, 0.95)),
        "bisr, 4 bands": bg.banded_inverse_square_root(work, 4),
        "bisr, 16 bands": bg.banded_inverse_square_root(work, 16),
        "bisr, 32 bands": bg.banded_inverse_square_root(work, 32),
        "bsr, 4 bands": bg.banded_square_root(work, 4),
        "bsr, 16 bands": bg.banded_square_root(work, 16),
        "buffered, 4 buffers": bg.buffered_toeplitz(n, [0.999, 0.99, 0.9, 0.4], [0.02, 0.05, 0.15, 0.2]),
        "nu-dp-ftrl, approximated": bg.approximated(bg.nu_dp_ftrl(n, 0.004)),
        "nu-dp-ftrl": bg.nu_dp_ftrl(n, 0.004),
        "tree, online": bg.tree_aggregation(n),
        "tree, full": bg.tree_aggregation(n, decoder="full"),
        "fourier, optimal, 5 stamps": bg.stamped(bg.fourier(n // 5, decoder="optimal"), 5),
        "banded, 4 general bands": bg.banded(_columns(n, 4)),
        "dense": bg.dense(bg.square_root(work).dense()),
        "full batch": bg.full_batch(n),
    }


def _columns(n: int, bands: int) -> list[list[float]]:
    return [[0.5**i if i + j < n else 0.0 for i in range(bands)] for j in range(n)]


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call, the mean of a few."""
    began = time.perf_counter()
    for _ in range(TIMED):
        run()
    return (time.perf_counter() - began) / TIMED


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    size, n = arguments.size, arguments.steps
    target, plain = torch.zeros(size), torch.empty(size)
    key = bg.NoiseKey.generate()
    streams = {}
    for name, strategy in strategies(n).items():
        mechanism = bg.Mechanism(strategy, bg.SinglePass(n), noise_multiplier=1.0)
        streams[name] = bg.NoiseStream(mechanism, [target], clip_norm=1.0, key=key)
        late = n - ROUNDS * TIMED
        if strategy.taps(0) is not None:  # what it keeps can be drawn again
            streams[name].load_state_dict({**streams[name].state_dict(), "step": late - 1})
        while streams[name].steps_taken < late:
            streams[name].add_to([target])
        print(f"{name}: at step {streams[name].steps_taken}", flush=True)
        rounds = [
            (
                timed(lambda: kernel.normals(key.secret, step=0, leaf=0, start=0, count=size)),
                timed(plain.normal_),
                timed(lambda name=name: streams[name].add_to([target])),
            )
            for _ in range(ROUNDS)
        ]
        streams[name] = [median(times) for times in zip(*rounds)]
    rows = []
    for name, strategy in strategies(n).items():
        drawn, torch_drawn, step = streams[name]
        draws, sums = strategy.cost
        rows.append(
            {
                "mechanism": name,
                "step_ms": f"{1e3 * step:.2f}",
                "times_kernel_draw": f"{step / drawn:.2f}",
                "times_torch_draw": f"{step / torch_drawn:.2f}",
                "model_copies": strategy.memory,
                "draws": draws,
                "additions": sums,
            }
        )
    for row in rows:
        print("  ".join(f"{value!s:>12}" for value in row.values()))
    arguments.out.mkdir(exist_ok=True)
    with (arguments.out / "streaming.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
