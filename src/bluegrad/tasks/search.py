"""The best strategy of a family as a command: checked options, a journal beside the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bluegrad import _checks, optimize, strategy
from bluegrad.optimize import Journal
from bluegrad.participation import BallsInBins, FixedEpochs
from bluegrad.strategy import Strategy
from bluegrad.workload import PrefixSum, Sgd, Workload

Progress = Callable[[int, float], None]
Law = FixedEpochs | BallsInBins
# A function of workload, law, size, loss, progress, journal and privacy target
Sized = Callable[..., Strategy]


@dataclass(frozen=True)
class Kind:
    """A family: what its size counts (None: it has none), the size if none is given, and its optimiser."""

    size: str | None
    usual: int
    find: Sized


def _dense(work: Workload, law: Law, _: int, loss: str, progress: Progress, journal: Journal, __: object) -> Strategy:
    _checks.choice("loss of a dense strategy", loss, ("rmse",))
    return optimize.dense(work, law, progress=lambda iteration, value, gap: progress(iteration, value), journal=journal)


def _scalar(find: Callable[..., Strategy]) -> Sized:
    return lambda work, law, _, loss, __, ___, privacy: find(work, law, loss=loss, privacy=privacy)


def _sized(find: Callable[..., Strategy]) -> Sized:
    return lambda work, law, size, loss, progress, journal, privacy: find(
        work, law, size, loss=loss, progress=progress, journal=journal, privacy=privacy
    )


def _banded(
    work: Workload, law: Law, size: int, loss: str, progress: Progress, journal: Journal, _: object
) -> Strategy:
    return optimize.banded(work, law, size, loss=loss, progress=progress, journal=journal)


SEARCHES = {
    "lambda-cgd": Kind(None, 0, _scalar(optimize.lambda_cgd)),
    "nu-dp-ftrl": Kind(None, 0, _scalar(optimize.nu_dp_ftrl)),
    "toeplitz": Kind("bands", 16, _sized(optimize.toeplitz)),
    "banded-inverse": Kind("bands", 8, _sized(optimize.banded_inverse)),
    "buffered": Kind("buffers", 4, _sized(optimize.buffered_toeplitz)),
    "banded": Kind("bands", 16, _banded),
    "dense": Kind(None, 0, _dense),
}


@dataclass(frozen=True)
class Search:
    """A search of the command line; everything is checked here.

    Raises:
        ValueError: an option out of range, named with its value, rule and fix.
    """

    family: str
    steps: int
    epochs: int
    size: int | None = None
    loss: str = "rmse"
    momentum: float = 0.0
    weight_decay: float = 0.0
    rates: list[float] | None = None
    sampling: str = "fixed"
    privacy: tuple[float, float] = (8.0, 1e-5)
    workload: Workload = field(init=False)
    participation: Law = field(init=False)

    def __post_init__(self) -> None:
        kind = SEARCHES[_checks.choice("family", self.family, tuple(SEARCHES))]
        _checks.choice("loss", self.loss, ("rmse", "max_error"))
        if self.size is not None and kind.size is None:
            raise _checks.fail("size", self.size, f"family {self.family!r} has none", "leave it out")
        plain = self.momentum == 0.0 and self.weight_decay == 0.0 and self.rates is None
        sgd = Sgd(self.steps, self.momentum, self.weight_decay, self.rates)
        object.__setattr__(self, "workload", PrefixSum(self.steps) if plain else sgd)
        _checks.choice("sampling", self.sampling, ("fixed", "balls-in-bins"))
        law = BallsInBins if self.sampling == "balls-in-bins" else FixedEpochs
        object.__setattr__(self, "participation", law(self.steps, self.epochs))

    def run(self, out: Path, progress: Progress) -> Strategy:
        """Find the strategy and save it; an interrupted search is continued from the journal beside `out`.

        Raises:
            ValueError: a size out of range, or a file name that isn't .npz.
            OSError: a file can't be written.
        """
        if out.suffix != ".npz":
            raise _checks.fail("out", str(out), "must end in .npz", "e.g. --out strategy.npz")
        kind, path = SEARCHES[self.family], out.with_suffix(".search")
        size = min(kind.usual, self.steps // self.epochs) if self.size is None else self.size
        target = self.privacy if self.sampling == "balls-in-bins" else None
        with Journal(path) as journal:
            best = kind.find(self.workload, self.participation, size, self.loss, progress, journal, target)
        strategy.save_strategy(best, out)
        path.unlink()
        return best


def read_rates(path: Path) -> list[float]:
    """One learning rate a line.

    Raises:
        ValueError: a line that isn't a number.
        OSError: the file can't be read.
    """
    try:
        return [float(x) for x in np.loadtxt(path, ndmin=1)]
    except ValueError as error:
        raise _checks.fail("rates", str(path), f"must hold one number a line ({error})", "e.g. 0.1") from None
