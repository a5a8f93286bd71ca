"""Test accuracy of mechanisms at equal epsilon, each at its own best learning rate, over several seeds.

The rate is chosen on seeds that aren't reported. Usage: python benchmarks/accuracy.py [--epsilon 8] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from bluegrad.tasks.loop import Run, load_data
from bluegrad.tasks.settings import Settings

MECHANISMS = ("dp-sgd", "lambda-cgd", "nu-dp-ftrl", "square-root")
RATES = (0.25, 0.5, 1.0, 2.0)
TUNING_SEEDS = (100, 101)
SEEDS = (0, 1, 2, 3, 4)


def accuracy(settings: Settings, images: tuple) -> tuple[float, float]:
    """Test accuracy in percent and seconds of one run in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        result = Run(settings, *images, Path(folder) / "run", resume=False).train(lambda progress: None)
    print(f"{settings.mechanism} lr {settings.lr} seed {settings.seed}: {100 * result.accuracy:.2f} %", flush=True)
    return 100.0 * result.accuracy, result.seconds


def main() -> None:
    """Tune, run, print a table and write it as CSV."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    base = Settings(epsilon=arguments.epsilon)
    images = load_data(base)
    rows = []
    for mechanism in MECHANISMS:
        tried = {
            lr: mean(accuracy(replace(base, mechanism=mechanism, lr=lr, seed=seed), images)[0] for seed in TUNING_SEEDS)
            for lr in RATES
        }
        lr = max(tried, key=lambda rate: tried[rate])
        runs = [accuracy(replace(base, mechanism=mechanism, lr=lr, seed=seed), images) for seed in SEEDS]
        accuracies = [run[0] for run in runs]
        rows.append(
            {
                "mechanism": mechanism,
                "epsilon": base.epsilon,
                "delta": base.delta,
                "lr": lr,
                "accuracy_mean": round(mean(accuracies), 2),
                "accuracy_std": round(stdev(accuracies), 2),
                "seeds": len(SEEDS),
                "seconds_per_run": round(mean(run[1] for run in runs), 1),
            }
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"accuracy-epsilon{base.epsilon:g}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(path.read_text())


if __name__ == "__main__":
    main()
