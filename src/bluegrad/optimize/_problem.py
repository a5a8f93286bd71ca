"""What every optimiser of this package does alike: checks at the door, the loss of row variances, the record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks, score
from bluegrad._checks import Unsupported
from bluegrad.optimize import _amplified
from bluegrad.optimize._descent import Descent, Function, Progress
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._record import Optimization, attach
from bluegrad.participation import BallsInBins, CyclicPoisson, FixedEpochs, Participation, Separated, SinglePass
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
    """A checked problem, and when it was posed.

    `law` has the patterns whose sensitivity is minimised. Under balls-in-bins `privacy` is the target, and
    `surrogate` stands for the sensitivity.
    """

    workload: Workload
    participation: Participation
    law: Separated
    loss: str
    progress: Progress | None
    started: float
    journal: Journal | None = None
    privacy: _amplified.Privacy | None = None
    surrogate: _amplified.Surrogate | None = None

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

    def solved(self, find: Callable[[Problem], tuple[Strategy, list[Descent]]]) -> Strategy:
        """The best strategy of a family with its record.

        Args:
            find: the best one for a problem, and the descents that led to it; the last tells whether it converged.
        """
        if not isinstance(self.participation, BallsInBins):
            return self._recorded(*find(self))
        return self._least_noise(find, self.participation)

    def _recorded(self, strategy: Strategy, descents: list[Descent]) -> Strategy:
        steps, seconds = sum(descent.iterations for descent in descents), perf_counter() - self.started
        record = Optimization(self.loss, self.value(strategy), steps, seconds, descents[-1].converged)
        return attach(strategy, record)

    def _least_noise(self, find: Callable[[Problem], tuple[Strategy, list[Descent]]], law: BallsInBins) -> Strategy:
        """The same where `privacy` decides."""
        iterations = 0

        def of(surrogate: _amplified.Surrogate) -> Strategy:
            nonlocal iterations
            found = self._recorded(*find(self._replace(surrogate=surrogate)))
            iterations += found.optimization.iterations
            return found

        def noise(strategy: Strategy) -> float:
            assert self.privacy is not None, "checked where the problem was posed"
            try:
                return self.privacy.multiplier(strategy, law) * self.value(strategy)
            except Unsupported:  # negative entries
                return float("inf")

        best, least = _amplified.search(of, noise, law)
        seconds = perf_counter() - self.started
        return attach(best, replace(best.optimization, iterations=iterations, seconds=seconds, noise=least))

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
    privacy: tuple[float, float] | None = None,
    amplified: bool = True,
) -> Problem:
    """Check the arguments that all optimisers share.

    Args:
        workload: A.
        participation: its law.
        loss: name of the loss.
        progress: called at iterations.
        journal: keeps evaluations.
        privacy: target, where the participation is balls-in-bins.
        amplified: whether the family can be searched under balls-in-bins.

    Raises:
        ValueError: unknown loss, no workload, different numbers of steps, or no privacy target where one is needed.
        Unsupported: another participation.
    """
    _checks.choice("loss", loss, tuple(LOSSES))
    if not isinstance(workload, Workload):
        raise _checks.fail("workload", workload, "must be a workload", "give bluegrad.PrefixSum(steps)")
    law = _patterns_of(participation, amplified)
    if participation.steps != workload.steps:
        raise _checks.fail(
            "participation.steps", participation.steps, f"must equal the workload's steps={workload.steps}",
            "build both for the same horizon",
        )  # fmt: skip
    if journal is not None and not isinstance(journal, Journal):
        raise _checks.fail("journal", journal, "must be a Journal", "give bluegrad.optimize.Journal(path), or None")
    target = _amplified.check_privacy(privacy, participation)
    return Problem(workload, participation, law, loss, progress, perf_counter(), journal, target)


def _patterns_of(participation: Participation, amplified: bool) -> Separated:
    """The law whose sensitivity is minimised."""
    if isinstance(participation, Separated):
        return participation
    if isinstance(participation, CyclicPoisson):  # rounds don't overlap: the largest column is what counts
        return SinglePass(participation.steps)
    if isinstance(participation, BallsInBins) and amplified:
        return FixedEpochs(participation.steps, participation.epochs)
    known = "SinglePass, FixedEpochs, MinSeparation, CyclicPoisson" + (" and BallsInBins" if amplified else "")
    raise Unsupported(
        f"participation={participation!r}: this family is optimised under {known} only; give one of these"
    )


def check_bands(problem: Problem, bands: int, most: int, name: str) -> None:
    """Refuse a number of bands of C outside 1 .. most, or above the period of cyclic Poisson sampling.

    Raises:
        ValueError: it is.
    """
    if isinstance(problem.participation, CyclicPoisson) and problem.participation.period < most:
        most, name = problem.participation.period, "period"
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
