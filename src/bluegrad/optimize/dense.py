"""The best strategy of all: a dense C of least squared error, with a certificate of how near the optimum it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import singledispatch
from math import sqrt
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks, score, strategy
from bluegrad._checks import Unsupported
from bluegrad.optimize import _dual, _projected
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._record import Optimization, attach
from bluegrad.participation import FixedEpochs, Participation, SinglePass
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import MATRIX_STEPS
from bluegrad.workload import Workload

Array = NDArray[np.float64]

_CONSTRAINTS = ("orthogonal", "signs", "nonnegative", "nonnegative_pairs")
# Most sign vectors over all patterns that are enumerated.
_SIGNS = 2**16


def dense(
    workload: Workload,
    participation: Participation,
    *,
    constraint: str = "orthogonal",
    tolerance: float = 1e-4,
    progress: Callable[[int, float, float], object] | None = None,
    journal: Journal | None = None,
) -> Strategy:
    """The strategy of least root mean squared error among all of sensitivity 1, to a certified gap.

    min ||A C^-1||_F over lower-triangular C; X = C^T C is constrained so that no unit contributes more than 1:

    - "orthogonal": X_ij = 0 for steps i, j of one unit, squared column norms of each pattern of sum 1. The optimum for
      contributions that are vectors, such as gradients.
    - "nonnegative_pairs": X_ij >= 0 for these pairs instead; it has the same optimum and is solved as the same
      problem.
    - "nonnegative": X_ij >= 0 for all pairs of steps, shared by a unit or not. Where this costs much the search is
      slow, and may end short of the tolerance.
    - "signs": |C u| <= 1 for contributions of +1 and -1 only. Small problems; gradients being vectors, the strategy is
      scaled down to what they can contribute, so its error stays above the bound.

    Args:
        workload: A, n steps.
        participation: FixedEpochs or SinglePass.
        constraint: one of the names above.
        tolerance: certified gap (value^2 - lower_bound^2) / value^2 at which to stop, between 0 and 1.
        progress: called at every iteration with its number, the error and the gap so far; what it raises is passed on.
            "nonnegative" first solves "orthogonal" without calling it.
        journal: keeps every iteration of "orthogonal" or "nonnegative_pairs" in a file, so that an interrupted search
            continues where it was.

    Returns:
        `bluegrad.dense(C)` with the record `optimization`: error, certified lower bound on the error of any strategy
        under the constraint, gap, and whether the tolerance was reached ("signs": for such contributions).

    Raises:
        ValueError: an unknown constraint, a tolerance outside (0, 1), no workload, different numbers of steps, or a
            journal with another constraint.
        Unsupported: another participation, too many steps for a dense strategy, or too many sign vectors.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum
        >>> found = dense(PrefixSum(64), FixedEpochs(64, 4)).optimization
        >>> round(found.value, 2), found.gap < 1e-4
        (4.41, True)

    Guarantees: the sensitivity is at most 1, whether the tolerance was reached or not.
    Source: arXiv 2211.06530, section 3 and appendix H.
    """
    start = perf_counter()
    times = _checked(workload, participation, constraint, tolerance, progress)
    _check_journal(journal, constraint)
    n = workload.steps
    gram = workload.apply_transpose(workload.dense())
    scale = float(np.trace(gram)) / n

    def report(iteration: int, primal: float, gap: float) -> None:
        if progress is not None:
            progress(iteration, sqrt(primal / n * scale), gap)

    task = _dual.problem(gram / scale, times)
    best = _solved(task, constraint, tolerance, report, journal)
    best.offer(*_diagonal(task))  # feasible whatever the constraint, where the search got nowhere
    found = _of_sensitivity_one(_triangular(_dual.in_order(best.x, times)), participation)
    record = Optimization(
        loss="rmse",
        value=score.rmse(found, workload, participation),
        iterations=best.iterations,
        seconds=perf_counter() - start,
        converged=best.gap <= tolerance,
        lower_bound=sqrt(best.dual / n * scale),
    )
    return attach(found, record)


def _checked(
    workload: Workload, participation: Participation, constraint: str, tolerance: float, progress: object
) -> int:
    """Number of participations; refuses bad arguments."""
    if not isinstance(workload, Workload):
        raise _checks.fail("workload", workload, "must be a workload", "give bluegrad.PrefixSum(steps)")
    times = _times(participation)
    n = workload.steps
    if participation.steps != n:
        raise _checks.fail(
            "participation.steps", participation.steps, f"must equal the workload's steps={n}",
            "build both for the same horizon",
        )  # fmt: skip
    _checks.choice("constraint", constraint, _CONSTRAINTS)
    _checks.real("tolerance", tolerance, low=0.0, high=1.0, low_open=True, high_open=True, fix="commonly 1e-3 to 1e-6")
    if progress is not None and not callable(progress):
        raise _checks.fail("progress", progress, "must be callable", "give a function of (iteration, value, gap)")
    if n > MATRIX_STEPS:
        raise Unsupported(
            f"dense strategy of steps={n}: more than the {MATRIX_STEPS} up to which an n x n matrix is formed; use "
            "fewer steps, or a structured family such as bluegrad.optimize.lambda_cgd"
        )
    if constraint == "signs" and (n // times) * 2 ** (times - 1) > _SIGNS:
        raise Unsupported(
            f"constraint='signs': {n // times} patterns of {times} participations have more than {_SIGNS} sign "
            "vectors; use constraint='orthogonal'"
        )
    return times


def _check_journal(journal: Journal | None, constraint: str) -> None:
    if journal is None:
        return
    if not isinstance(journal, Journal):
        raise _checks.fail("journal", journal, "must be a Journal", "give bluegrad.optimize.Journal(path), or None")
    if constraint in ("signs", "nonnegative"):
        raise _checks.fail("journal", journal.path, f"can't be kept under constraint={constraint!r}", "give None")


@singledispatch
def _times(participation: Participation) -> int:
    raise Unsupported(
        f"the best dense strategy under {participation!r}: known for FixedEpochs and SinglePass only; a strategy for "
        "FixedEpochs can be scored under other participations"
    )


@_times.register
def _(participation: FixedEpochs) -> int:
    return participation.epochs


@_times.register
def _(participation: SinglePass) -> int:
    return 1


def _solved(
    task: _dual.Problem, constraint: str, tolerance: float, progress: _dual.Progress, journal: Journal | None
) -> _dual.Best:
    """The certificates under a constraint."""
    if constraint == "signs":
        signs = _projected.Signs(task)
        return _projected.ascend(task, signs, signs.start(), tolerance, progress)
    if constraint == "nonnegative":
        _, factor = _dual.solve(task, tolerance)
        everywhere = _projected.Nonnegative(task)
        return _projected.ascend(task, everywhere, everywhere.start(factor), tolerance, progress)
    if journal is None:
        return _dual.solve(task, tolerance, progress)[0]
    label = hashlib.sha256(f"dense {task.times} ".encode() + task.gram.tobytes()).digest()
    return _dual.solve(task, tolerance, progress, lambda answer: journal.through(answer, label))[0]


def _diagonal(task: _dual.Problem) -> tuple[Array, float]:
    """The best diagonal X and its loss: independent noise, of its own size at every step."""
    root = np.sqrt(np.diag(task.gram)).reshape(-1, task.times)
    total = root.sum(axis=1, keepdims=True)
    return np.diag((root / total).ravel()), float((total * total).sum())


def _triangular(x: Array) -> Array:
    """Lower-triangular C of positive diagonal with C^T C = X: the Cholesky factor of X reversed, reversed.

    An X that is singular to rounding is mixed with its diagonal, as feasible as X itself.
    """
    for share in (0.0, *_dual.MIXTURES):
        mixed = (1.0 - share) * x + share * np.diag(np.diag(x))
        try:
            return np.ascontiguousarray(np.linalg.cholesky(mixed[::-1, ::-1])[::-1, ::-1].T)
        except np.linalg.LinAlgError:
            continue
    raise AssertionError("the diagonal of X is positive")


def _of_sensitivity_one(c: Array, participation: Participation) -> Strategy:
    """C over its sensitivity, which then is 1 or, by rounding, as close below as it takes."""
    found = strategy.dense(c)
    sensitivity = score.sensitivity(found, participation)
    excess = 1.0
    while True:
        found = strategy.dense(c / (sensitivity * excess))
        reached = score.sensitivity(found, participation)
        if reached <= 1.0:
            return found
        excess = max(excess * reached, float(np.nextafter(excess, 2.0)))
