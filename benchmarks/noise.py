"""Drawing noise: this package's kernels beside torch's `normal_`, and whole noise steps beside jax-privacy's.

Every round times all contestants in turn, and the least of the rounds counts, since other work on the machine only
adds: wall-clock time, and the time of all processors together, which other work hardly changes.

Usage: python benchmarks/noise.py [--rounds N] [--jax PYTHON] [--out FOLDER], where PYTHON is an interpreter that has
jax and jax-privacy; without it that comparison is left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import bluegrad as bg
from bluegrad.noise import kernel

SIZES = (1_000_000, 10_000_000)
STEPS, EARLY, TURNS = 100, 20, 3  # of a stream; of those before the ones that are timed; of the processes
TAPS = {
    "plain noise": [1.0],
    "lambda-CGD step": [1.0, -0.9],
    "BISR step, 4 bands": [1.0, -0.5, -0.125, -0.0625],
}
# of C, the same for jax-privacy in noise_jax.py
STREAMS = {
    "dp-sgd": lambda: bg.identity(STEPS),
    "banded, 2 bands": lambda: bg.toeplitz([0.5**i for i in range(2)], STEPS),
    "banded, 4 bands": lambda: bg.toeplitz([0.5**i for i in range(4)], STEPS),
    "banded, 16 bands": lambda: bg.toeplitz([0.5**i for i in range(16)], STEPS),
    "buffered, 4 buffers": lambda: bg.buffered_toeplitz(STEPS, [0.999, 0.99, 0.9, 0.4], [0.02, 0.05, 0.15, 0.2]),
}


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one call."""
    began = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def least(times: list[tuple[float, float]]) -> tuple[float, float]:
    """The least of either kind."""
    wall, processor = zip(*times)
    return min(wall), min(processor)


def draws(size: int, threads: int, rounds: int) -> list[dict[str, object]]:
    """Fused draws of every backend over torch's `normal_` on as many threads."""
    torch.set_num_threads(threads)
    out, plain = np.zeros(size, np.float32), torch.empty(size)
    at = {"key": bg.NoiseKey.generate().secret, "step": 9, "leaf": 0, "start": 0, "scale": 1.0, "threads": threads}
    contestants: dict[tuple[str, str], Callable[[], object]] = {("torch", "normal_"): plain.normal_}
    for name in kernel.backends():
        for case, taps in TAPS.items():
            contestants[name, case] = lambda name=name, taps=taps: kernel.add_weighted_normals(
                out, taps, backend=name, **at
            )
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in contestants}
    for _ in range(rounds):
        for key, run in contestants.items():
            times[key].append(seconds(run))
    best = {key: least(values) for key, values in times.items()}
    wall, processor = best["torch", "normal_"]
    return [
        {
            "kernel": name,
            "case": case,
            "elements": size,
            "threads": threads,
            "wall_ns": f"{1e9 * mine[0] / size:.2f}",
            "times_torch_wall": f"{mine[0] / wall:.2f}",
            "processor_ns": f"{1e9 * mine[1] / size:.2f}",
            "times_torch_processor": f"{mine[1] / processor:.2f}",
        }
        for (name, case), mine in best.items()
    ]


def steps(size: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Times of a noise step of every mechanism, added to a gradient."""
    target, times = torch.zeros(size), {}
    for name, strategy in STREAMS.items():
        mechanism = bg.Mechanism(strategy(), bg.SinglePass(STEPS), noise_multiplier=1.0)
        stream = bg.NoiseStream(mechanism, [target], clip_norm=1.0, key=bg.NoiseKey.generate())
        for _ in range(EARLY):
            stream.add_to([target])
        times[name] = least([seconds(lambda stream=stream: stream.add_to([target])) for _ in range(rounds)])
    return times


def beside_jax(python: str, rounds: int) -> list[dict[str, object]]:
    """Noise steps over jax-privacy's, in processes that take turns; the least of all turns."""
    script = str(Path(__file__).with_name("noise_jax.py"))
    rows = []
    for size in SIZES:
        mine, theirs = [], []
        for _ in range(TURNS):
            mine.append(steps(size, rounds))
            done = subprocess.check_output([python, script, str(size), str(rounds)], text=True)
            theirs.append(json.loads(done.splitlines()[-1]))
        for name in STREAMS:
            ours, jax = (least([turn[name] for turn in turns]) for turns in (mine, theirs))
            rows.append(
                {
                    "mechanism": name,
                    "elements": size,
                    "wall_ns": f"{1e9 * ours[0] / size:.2f}",
                    "jax_wall_ns": f"{1e9 * jax[0] / size:.2f}",
                    "jax_over_ours_wall": f"{jax[0] / ours[0]:.1f}",
                    "processor_ns": f"{1e9 * ours[1] / size:.2f}",
                    "jax_processor_ns": f"{1e9 * jax[1] / size:.2f}",
                    "jax_over_ours_processor": f"{jax[1] / ours[1]:.1f}",
                }
            )
    return rows


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Print the table and write it as CSV."""
    for row in rows:
        print("  ".join(f"{value!s:>19}" for value in row.values()), flush=True)
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Measure, print and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jax", metavar="PYTHON", help="interpreter that has jax-privacy")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    rows = [row for threads in (1, 2) for size in SIZES for row in draws(size, threads, arguments.rounds)]
    write(arguments.out / "noise.csv", rows)
    if arguments.jax:
        write(arguments.out / "noise-jax.csv", beside_jax(arguments.jax, arguments.rounds))


if __name__ == "__main__":
    main()
