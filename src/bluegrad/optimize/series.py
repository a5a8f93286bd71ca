"""Best banded Toeplitz C: error by forward substitution, gradient by its adjoint, O(n bands) each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bluegrad import _series, strategy
from bluegrad.optimize import _pattern
from bluegrad.optimize._blocks import BlockedVariances
from bluegrad.optimize._descent import Descent, Function, Progress, descend
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._problem import POWERS, Problem, check_bands, pose, row_loss
from bluegrad.participation import FixedEpochs, Participation
from bluegrad.strategy import Strategy
from bluegrad.workload import PrefixSum, Workload

Array = NDArray[np.float64]
# c -> log of a squared quantity, and its gradient in c
Log = Callable[[Array], tuple[float, Array]]
# a function of variables, coefficients -> variables, variables -> coefficients
Variables = tuple[Function, Callable[[Array], Array], Callable[[Array], Array]]

# Up to this many bands forward substitution beats the FFT, and so do plain products for the gradient.
SUBSTITUTED = 256
_PRODUCTS = 64
# Where bounds make coefficients vanish, the start keeps them this far above 0, so that they can move.
_FLOOR = 1e-3


def toeplitz(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    loss: str = "rmse",
    progress: Progress | None = None,
    journal: Journal | None = None,
    privacy: tuple[float, float] | None = None,
) -> Strategy:
    """The banded Toeplitz strategy of least loss.

    Minimises sens(C)^2 sum_t w_t b_t^2 over c_0, ..., c_(bands-1), where b = A(x) / C(x), w_t = (n - t) / n for RMSE
    and 1 for the largest error. With at most `separation` bands (or one participation) sens^2 = sum_i m_i c_i^2 for
    any signs. With more, the minimum is over non-negative (FixedEpochs) or non-negative and non-increasing
    coefficients (MinSeparation): there the sensitivity is that of the first pattern, exactly.

    Args:
        workload: A, n steps. Rates that change take O(bands) times as long.
        participation: SinglePass, FixedEpochs, MinSeparation, CyclicPoisson (bands at most its period) or BallsInBins.
        bands: number of bands of C, from 1 to n; streaming keeps bands - 1 model copies.
        loss: "rmse" or "max_error".
        progress: called as progress(iteration, value) at every iteration.
        journal: keeps every evaluation in a file, so that an interrupted search continues where it was.
        privacy: (epsilon, delta), needed under BallsInBins: the loss times the noise multiplier there is minimised,
            over non-negative coefficients.

    Returns:
        `bluegrad.toeplitz(coefficients, n)` with c_0 = 1, and the record of the search as its `optimization`.

    Raises:
        ValueError: unknown loss, bands outside 1 .. n, different numbers of steps, or no privacy target where it is
            needed.
        Unsupported: another participation.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum
        >>> best = toeplitz(PrefixSum(2000), FixedEpochs(2000, 20), bands=100)
        >>> round(best.optimization.value, 4), best.optimization.converged
        (20.2067, True)

    Source: arXiv 2306.08153, section 4 (banded Toeplitz); arXiv 2405.13763, theorem 2 (sensitivity).
    """
    problem = pose(workload, participation, loss, progress, journal, privacy)
    check_bands(problem, bands, problem.steps, "steps")
    return problem.solved(lambda posed: _found(posed, bands))


def _found(problem: Problem, bands: int) -> tuple[Strategy, list[Descent]]:
    """The best strategy and the descents that led to it."""
    if problem.surrogate is not None:
        start = np.maximum(_start(problem, bands), _FLOOR)
        c, descents = _stages(problem, start, _non_negative)
        return strategy.toeplitz(c, problem.steps), descents
    free = problem.law.separation if _pattern.participations(problem.law) > 1 else problem.steps
    c, descents = _stages(problem, _start(problem, min(bands, free)), _any_sign)
    best = strategy.toeplitz(c, problem.steps)
    if bands > free:
        start = np.maximum(_start(problem, bands), _FLOOR)
        bounded = _non_negative if isinstance(problem.law, FixedEpochs) else _non_increasing
        c, more = _stages(problem, start, bounded)
        wide = strategy.toeplitz(c, problem.steps)
        descents = [*descents, *more]
        if problem.value(wide) < problem.value(best):
            best = wide
    return best, descents


def _start(problem: Problem, bands: int) -> Array:
    """The square root of the workload, where it has one, else that of the prefix sum."""
    a = problem.workload.coefficients()
    rooted = problem.workload if a is not None and a[0] > 0.0 else PrefixSum(problem.steps)
    root = rooted.root(+1)[:bands]
    return np.asarray(root / root[0])


def _stages(problem: Problem, c: Array, bounded: Callable[[Problem, Log], Variables]) -> tuple[Array, list[Descent]]:
    """Descend from c, once for every power of the loss; returns coefficients and descents."""
    descents: list[Descent] = []
    for log_error in _log_errors(problem, len(c)):
        function, enter, leave = bounded(problem, log_error)
        descents.append(descend(problem.through(function), enter(c), progress=problem.progress))
        c = leave(descents[-1].x)
    return c, descents


def _any_sign(problem: Problem, log_error: Log) -> Variables:
    """Variables c_1, c_2, ... (c_0 = 1), for sens^2 = sum_i m_i c_i^2."""

    def leave(x: Array) -> Array:
        return np.concatenate([[1.0], x])

    def function(x: Array) -> tuple[float, Array]:
        c = leave(x)
        error, gradient = log_error(c)
        weighted = _pattern.column_weights(problem.law, len(c)) * c
        squared = float(weighted @ c)
        return error + float(np.log(squared)), (gradient + 2.0 * weighted / squared)[1:]

    return function, lambda c: c[1:] / c[0], leave


def _non_negative(problem: Problem, log_error: Log) -> Variables:
    """Variables x with c = x^2 (c_0 = 1), for the first pattern's sensitivity."""

    def leave(x: Array) -> Array:
        return np.concatenate([[1.0], x * x])

    def function(x: Array) -> tuple[float, Array]:
        value, gradient = _first_pattern(problem, log_error, leave(x))
        return value, 2.0 * x * gradient[1:]

    return function, lambda c: np.sqrt(c[1:] / c[0]), leave


def _non_increasing(problem: Problem, log_error: Log) -> Variables:
    """Variables x with c_i = sum_(j >= i) x_j^2, up to scale."""

    def enter(c: Array) -> Array:
        falling = np.maximum.accumulate(c[::-1])[::-1]
        return np.sqrt(np.maximum(-np.diff(falling, append=0.0), _FLOOR / len(c)))

    def series(x: Array) -> Array:
        return np.cumsum((x * x)[::-1])[::-1]

    def function(x: Array) -> tuple[float, Array]:
        value, gradient = _first_pattern(problem, log_error, series(x))
        return value, 2.0 * x * np.cumsum(gradient)

    return function, enter, lambda x: series(x) / series(x)[0]


def _first_pattern(problem: Problem, log_error: Log, c: Array) -> tuple[float, Array]:
    error, gradient = log_error(c)
    if problem.surrogate is not None:
        squared, in_c = problem.surrogate.squared(c)
        return error + float(np.log(squared)), gradient + in_c / squared
    total = _pattern.repeated(c, problem.law)
    squared = float(total @ total)
    back = _pattern.repeated_transpose(total, problem.law)[: len(c)]
    return error + float(np.log(squared)), gradient + 2.0 * back / squared


def _log_errors(problem: Problem, bands: int) -> list[Log]:
    """Log of the squared error as a function of c, for every stage of the descent."""
    a = problem.workload.coefficients()
    if a is not None:
        weights = problem.series_weights()
        return [partial(_series_error, a, weights)]
    blocked = BlockedVariances(problem.workload, bands)
    return [partial(_tied_error, blocked, power) for power in POWERS[problem.loss]]


def _series_error(a: Array, weights: Array, c: Array) -> tuple[float, Array]:
    """log sum_t w_t b_t^2, b = a / c. Gradient: d b = -b dC / C, so -2 <C^-T (w b), shifted b> / sum."""
    n = len(a)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(c) <= SUBSTITUTED:
            b = _series.divide(a, c, n)
            adjoint = _series.divide((weights * b)[::-1], c, n)[::-1]
        else:
            inverse = _series.inverse(c, n)
            b = _series.multiply(inverse, a, n)
            adjoint = _series.multiply((weights * b)[::-1], inverse, n)[::-1]
        error = float((weights * b) @ b)
    if not np.isfinite(error):
        return np.inf, c
    return float(np.log(error)), -2.0 / error * correlations(adjoint, b, len(c))


def _tied_error(blocked: BlockedVariances, power: float, c: Array) -> tuple[float, Array]:
    """The same from the variances of all rows, for a workload that isn't Toeplitz: every column is c, cut at n."""
    n = blocked.steps
    fits = np.arange(n)[:, None] + np.arange(len(c)) < n
    with np.errstate(over="ignore", invalid="ignore"):
        forward = blocked.forward(fits * c)
        value, weights = row_loss(forward.variances, power)
        if not np.isfinite(value):
            return np.inf, c
        return value, (fits * blocked.backward(forward, weights)).sum(axis=0)


def correlations(left: Array, right: Array, lags: int) -> Array:
    """sum_t left_t right_(t - i) for i = 0 .. lags - 1."""
    n = len(left)
    if lags <= _PRODUCTS:
        return np.array([left[i:] @ right[: n - i] for i in range(lags)])
    return _series.multiply(left[::-1].copy(), right, n)[::-1][:lags]
