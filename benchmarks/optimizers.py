"""Loss and time of every optimiser on the sizes that matter, in one process, one after the other.

Usage: python benchmarks/optimizers.py [--only NAME] [--out FOLDER]

The largest dense problem takes a quarter of an hour and 5.4 GB, and is solved only if named: --only "n 8192".
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import bluegrad as bg
from bluegrad import optimize

MILLION = 1_000_000


def epochs(n: int, k: int) -> tuple[bg.PrefixSum, bg.FixedEpochs]:
    """The prefix sum under k epochs."""
    return bg.PrefixSum(n), bg.FixedEpochs(n, k)


def cooled() -> tuple[bg.Sgd, bg.FixedEpochs]:
    """Momentum 0.95, the last quarter of the rates falling linearly to 0.05, 6 epochs of 342 steps."""
    rates = np.ones(2052)
    rates[-513:] = np.linspace(1.0, 0.05, 513)
    return bg.Sgd(2052, momentum=0.95, learning_rates=rates), bg.FixedEpochs(2052, 6)


def single(n: int) -> tuple[bg.PrefixSum, bg.SinglePass]:
    """The prefix sum in one epoch."""
    return bg.PrefixSum(n), bg.SinglePass(n)


CASES: dict[str, Callable[[], bg.Strategy]] = {
    "dense, n 256, k 8": lambda: optimize.dense(*epochs(256, 8)),
    "dense, n 512, k 8": lambda: optimize.dense(*epochs(512, 8)),
    "dense, n 2000, k 20": lambda: optimize.dense(*epochs(2000, 20)),
    "dense, n 2052, k 6, momentum, cool-down": lambda: optimize.dense(*cooled()),
    "banded, n 512, one epoch, 16 bands": lambda: optimize.banded(*single(512), 16),
    "banded, n 2048, k 16, 16 bands": lambda: optimize.banded(*epochs(2048, 16), 16),
    "banded, n 100000, k 10, 16 bands": lambda: optimize.banded(*epochs(100_000, 10), 16),
    "toeplitz, n 2000, k 20, 100 bands": lambda: optimize.toeplitz(*epochs(2000, 20), 100),
    "toeplitz, n 65536, k 16, 16 bands": lambda: optimize.toeplitz(*epochs(65_536, 16), 16),
    "toeplitz, n 1000000, k 20, 16 bands": lambda: optimize.toeplitz(*epochs(MILLION, 20), 16),
    "banded inverse, n 2000, k 20, 4 bands": lambda: optimize.banded_inverse(*epochs(2000, 20), 4),
    "banded inverse, n 2000, k 20, 8 bands": lambda: optimize.banded_inverse(*epochs(2000, 20), 8),
    "buffered, n 2000, k 20, 4 buffers": lambda: optimize.buffered_toeplitz(*epochs(2000, 20), 4),
    "buffered, n 1000000, k 20, 4 buffers": lambda: optimize.buffered_toeplitz(*epochs(MILLION, 20), 4),
    "lambda-CGD, n 1000000, k 20": lambda: optimize.lambda_cgd(*epochs(MILLION, 20)),
    "nu-DP-FTRL, n 1000000, k 20": lambda: optimize.nu_dp_ftrl(*epochs(MILLION, 20)),
}

LARGE: dict[str, Callable[[], bg.Strategy]] = {"dense, n 8192, k 8": lambda: optimize.dense(*epochs(8192, 8))}


def main() -> None:
    """Run every case, print a line each and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    rows = []
    chosen, large = ({name: find for name, find in cases.items() if arguments.only in name} for cases in (CASES, LARGE))
    for name, find in (chosen or large).items():
        began = time.perf_counter()
        record = find().optimization
        rows.append(
            {
                "problem": name,
                record.loss: f"{record.value:.6g}",
                "certified_gap": "" if record.gap is None else f"{record.gap:.1e}",
                "iterations": record.iterations,
                "converged": record.converged,
                "seconds": f"{time.perf_counter() - began:.2f}",
            }
        )
        print("  ".join(str(value) for value in rows[-1].values()), flush=True)
    arguments.out.mkdir(exist_ok=True)
    with (arguments.out / "optimizers.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
