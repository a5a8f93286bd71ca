"""What every optimiser of this package does alike: checks at the door, the loss of row variances, the record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks, score
from bluegrad._checks import Unsupported
from bluegrad.optimize._descent import Descent, Function, Progress
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._record import Optimization, attach
from bluegrad.participation import Participation, Separated
from bluegrad.strategy import Strategy
from bluegrad.workload import Workload

Array = NDArray[np.float64]

LOSSES: dict[str, Callable[[Strategy, Workload, Participation], float]] = {
    "rmse": score.rmse,
    "max_error": score.max_error,
}
# Powers q of (sum of variances^q)^(1/q) in turn: the largest variance where no theorem says which row has it.
POWERS = {"rmse": (1.0,), "max_error": (8.0, 64.0, 512.0, 4096.0)}


class Problem(NamedTuple):
    """A checked problem, and when it was posed."""

    workload: Workload
    law: Separated
    loss: str
    progress: Progress | None
    started: float
    journal: Journal | None = None

    @property
    def steps(self) -> int:
        """Number of steps n."""
        return self.workload.steps

    def through(self, function: Function) -> Function:
        """The function, with its values kept in the journal if there is one."""
        if self.journal is None:
            return function
        probe = self.workload.apply(np.cos(np.arange(self.steps, dtype=np.float64)))  # two workloads differ on it
        label = f"{self.loss} {self.law!r} {probe.tobytes().hex()}".encode()
        return self.journal.through(function, hashlib.sha256(label).digest())

    def value(self, strategy: Strategy) -> float:
        """The loss of a strategy."""
        return LOSSES[self.loss](strategy, self.workload, self.law)

    def record(self, strategy: Strategy, *descents: Descent) -> Strategy:
        """The strategy with a record of the descents that led to it; the last one tells whether it converged."""
        steps = sum(descent.iterations for descent in descents)
        seconds = perf_counter() - self.started
        converged = descents[-1].converged
        return attach(strategy, Optimization(self.loss, self.value(strategy), steps, seconds, converged))

    def series_weights(self) -> Array:
        """w with loss^2 = sens^2 sum_t w_t b_t^2 for Toeplitz B: its rows only grow, so the last one is the largest."""
        n = self.steps
        return (n - np.arange(n)) / n if self.loss == "rmse" else np.ones(n)


def pose(
    workload: Workload,
    participation: Participation,
    loss: str,
    progress: Progress | None,
    journal: Journal | None = None,
) -> Problem:
    """Check the arguments that all optimisers share.

    Raises:
        ValueError: unknown loss, no workload, or different numbers of steps.
        Unsupported: no participation with a separation.
    """
    _checks.choice("loss", loss, tuple(LOSSES))
    if not isinstance(workload, Workload):
        raise _checks.fail("workload", workload, "must be a workload", "give bluegrad.PrefixSum(steps)")
    if not isinstance(participation, Separated):
        raise Unsupported(
            f"participation={participation!r}: optimisers know the sensitivity under SinglePass, FixedEpochs and "
            "MinSeparation only; give one of these"
        )
    if participation.steps != workload.steps:
        raise _checks.fail(
            "participation.steps", participation.steps, f"must equal the workload's steps={workload.steps}",
            "build both for the same horizon",
        )  # fmt: skip
    if journal is not None and not isinstance(journal, Journal):
        raise _checks.fail("journal", journal, "must be a Journal", "give bluegrad.optimize.Journal(path), or None")
    return Problem(workload, participation, loss, progress, perf_counter(), journal)


def check_bands(bands: int, most: int, name: str) -> None:
    """Refuse a number of bands outside 1 .. most.

    Raises:
        ValueError: it is.
    """
    fix = f"give 1 to {name}={most} bands"
    if _checks.integer("bands", bands, minimum=1, fix=fix) > most:
        raise _checks.fail("bands", bands, f"must be at most {name}={most}", fix)


def row_loss(variances: Array, power: float) -> tuple[float, Array]:
    """Log of the mean (power 1) or of the power sum's root, and its gradient in the variances; infinite on overflow."""
    top = float(variances.max())
    if not np.isfinite(top):
        return np.inf, variances
    if power == 1.0:
        total = float(variances.sum())
        return float(np.log(total / len(variances))), np.full(len(variances), 1.0 / total)
    shares = (variances / top) ** (power - 1.0)
    total = float(shares @ (variances / top))
    return float(np.log(top) + np.log(total) / power), shares / (total * top)
