"""Best banded Toeplitz noise, C^-1 = N: the error is a quadratic form, the sensitivity that of 1 / N."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from bluegrad import _series, strategy
from bluegrad._checks import Unsupported
from bluegrad.optimize import _gram, _pattern
from bluegrad.optimize._descent import Descent, Function, Progress, descend
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._problem import POWERS, Problem, check_bands, pose, row_loss
from bluegrad.optimize.series import SUBSTITUTED, Log, correlations
from bluegrad.participation import CyclicPoisson, FixedEpochs, Participation
from bluegrad.strategy import Strategy
from bluegrad.workload import PrefixSum, Workload

Array = NDArray[np.float64]

# A further descent from where one ended must gain this much in log loss^2 to call for another.
_GAIN = 1e-9
_DESCENTS = 3
_LIMIT = 300
# |c| and |X| are rounded off within this distance of 0 at first, so that signs can settle.
_ROUNDED = 1e-3
# Up to this many epochs the Gram matrix of a pattern is formed where C has negative entries.
_GRAM_TIMES = 512


def banded_inverse(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    loss: str = "rmse",
    progress: Progress | None = None,
    journal: Journal | None = None,
    privacy: tuple[float, float] | None = None,
) -> Strategy:
    """The strategy of least loss whose noise mixes the last `bands` raw noise vectors with fixed weights (BandInvMF).

    Minimises sens(1 / N)^2 sum_t w_t b_t^2 over the coefficients of N, where b = A(x) N(x), w_t = (n - t) / n for RMSE
    and 1 for the largest error. C = 1 / N need be neither monotone nor positive: the squared sensitivity minimised
    is the sum of |C^T C| over the first pattern under FixedEpochs, exact where C^T C >= 0 there, and that of the
    non-increasing envelope of |C| under MinSeparation, an upper bound. The record's value has the sensitivity that
    `bluegrad.certify` gives.

    Args:
        workload: A, n steps.
        participation: SinglePass, FixedEpochs, MinSeparation or BallsInBins.
        bands: number of bands of N, from 1 to n.
        loss: "rmse" or "max_error".
        progress: called as progress(iteration, value) at every iteration.
        journal: keeps every evaluation in a file, so that an interrupted search continues where it was.
        privacy: (epsilon, delta), needed under BallsInBins: the loss times the noise multiplier there is minimised
            among strategies without negative entries.

    Returns:
        `bluegrad.banded_inverse_toeplitz(noise_coefficients, n)`, the first coefficient 1, and the record of the search
        as its `optimization`.

    Raises:
        ValueError: unknown loss, bands outside 1 .. n, different numbers of steps; "max_error" for rates that change
            and more steps or bands than fit the memory.
        Unsupported: another participation.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum
        >>> best = banded_inverse(PrefixSum(1000), FixedEpochs(1000, 10), bands=4)
        >>> best.noise_coefficients().round(3), round(best.optimization.value, 4)
        (array([ 1.  , -0.43, -0.13, -0.38]), 13.1197)

    Source: arXiv 2505.12128, section 5 (BandInvMF).
    """
    problem = pose(workload, participation, loss, progress, journal, privacy)
    if isinstance(participation, CyclicPoisson):
        raise Unsupported(f"{participation!r}: C has as many bands as steps; use bluegrad.optimize.toeplitz or banded")
    check_bands(problem, bands, problem.steps, "steps")
    return problem.solved(lambda posed: _found(posed, bands))


def _found(problem: Problem, bands: int) -> tuple[Strategy, list[Descent]]:
    """The best strategy and the descents that led to it."""
    noise, descents = np.ones(1), [descend(lambda x: (0.0, x), np.zeros(0))]
    # more bands start from the best of fewer, so they are never worse
    for size in _ladder(bands):
        starts = [np.pad(noise, (0, size - len(noise)))]
        if size == bands:
            starts.append(_inverse_root(problem, size))
        noise, descents = _best(problem, size, starts)
    return strategy.banded_inverse_toeplitz(noise, problem.steps), descents


def _ladder(bands: int) -> list[int]:
    sizes, size = [], 2
    while size < bands:
        sizes.append(size)
        size += max(1, size // 2)
    return [*sizes, bands] if bands > 1 else []


def _inverse_root(problem: Problem, bands: int) -> Array:
    a = problem.workload.coefficients()
    rooted = problem.workload if a is not None and a[0] > 0.0 else PrefixSum(problem.steps)
    root = rooted.root(-1)[:bands]
    return np.asarray(root / root[0])


def _best(problem: Problem, bands: int, starts: list[Array]) -> tuple[Array, list[Descent]]:
    """The best end of descents from several starts; those of out of reach (C overflows) are left out."""
    stages = [partial(_objective, problem, log_error, 0.0) for log_error in _log_errors(problem, bands)]
    if _pattern.participations(problem.law) > 1:
        stages.insert(0, partial(_objective, problem, _log_errors(problem, bands)[0], _ROUNDED))
    ends: list[tuple[Array, list[Descent]]] = []
    for start in starts:
        x, descents = start[1:], []
        if not np.isfinite(stages[0](x)[0]):
            continue
        for stage in stages[:-1]:
            descents.append(descend(problem.through(stage), x, limit=_LIMIT, progress=problem.progress))
            x = descents[-1].x
        descents += _repeated_descent(problem.through(stages[-1]), x, problem.progress)
        x = descents[-1].x
        ends.append((np.concatenate([[1.0], x]), descents))
    return min(ends, key=lambda end: end[1][-1].value)


def _repeated_descent(function: Function, x: Array, progress: Progress | None) -> list[Descent]:
    """Descend, and again from there with a fresh model until that gains nothing: |C| and its envelope have kinks."""
    descents = [descend(function, x, limit=_LIMIT, progress=progress)]
    while len(descents) < _DESCENTS:
        before = descents[-1]
        descents.append(descend(function, before.x, limit=_LIMIT, progress=progress))
        if before.value - descents[-1].value <= _GAIN:
            break
    return descents


def _objective(problem: Problem, log_error: Log, rounded: float, x: Array) -> tuple[float, Array]:
    """Log of sens^2 error^2, |c| rounded off near 0, and its gradient in the noise coefficients after the first."""
    noise = np.concatenate([[1.0], x])
    error, error_gradient = log_error(noise)
    with np.errstate(over="ignore", invalid="ignore"):
        squared, gradient = _log_sensitivity(problem, noise, rounded)
    return error + squared, (error_gradient + gradient)[1:]


def _log_sensitivity(problem: Problem, noise: Array, rounded: float) -> tuple[float, Array]:
    """Log of the squared sensitivity of c = 1 / N, and its gradient: d c = -c dN / N."""
    n, bands = problem.steps, len(noise)
    c = _series.inverse(noise, n)
    if not np.isfinite(c).all():
        return np.inf, noise
    squared, in_c = _squared_sensitivity(problem, c, rounded)
    if not np.isfinite(squared):
        return np.inf, noise
    if bands <= SUBSTITUTED:
        adjoint = _series.divide(in_c[::-1], noise, n)[::-1]
    else:
        adjoint = _series.multiply(in_c[::-1], c, n)[::-1]
    return float(np.log(squared)), -correlations(adjoint, c, bands) / squared


def _squared_sensitivity(problem: Problem, c: Array, rounded: float) -> tuple[float, Array]:
    """Squared sensitivity (a bound where |C| isn't C, or not monotone), and its gradient in c."""
    law = problem.law
    if problem.surrogate is None and _pattern.participations(law) == 1:
        return float(c @ c), 2.0 * c
    if problem.surrogate is None and isinstance(law, FixedEpochs) and law.epochs <= _GRAM_TIMES and (c < 0.0).any():
        return _pattern.absolute_gram(c, law, rounded)
    root = np.sqrt(c * c + rounded * rounded)
    size, slope = root - rounded, np.divide(c, root, out=np.zeros_like(c), where=root > 0.0)
    if problem.surrogate is not None:
        squared, gradient = problem.surrogate.squared(size)
        return squared, gradient * slope
    if isinstance(law, FixedEpochs):
        total = _pattern.repeated(size, law)
        return float(total @ total), 2.0 * slope * _pattern.repeated_transpose(total, law)
    envelope = np.maximum.accumulate(size[::-1])[::-1]
    total = _pattern.repeated(envelope, law)
    # the envelope at t is |c| at the first place from t on where they meet
    meets = np.flatnonzero(size == envelope)
    owner = meets[np.searchsorted(meets, np.arange(len(c)))]
    back = np.bincount(owner, _pattern.repeated_transpose(total, law), len(c))
    return float(total @ total), 2.0 * slope * back


def _log_errors(problem: Problem, bands: int) -> list[Log]:
    """Log of the squared error as a function of the noise coefficients, for every stage of the descent."""
    if problem.workload.coefficients() is not None:
        return [partial(_series_error, problem.workload, problem.series_weights())]
    if problem.loss == "rmse":
        return [partial(_form_error, _gram.total_form(problem.workload, bands) / problem.steps)]
    forms = _gram.row_forms(problem.workload, bands)
    return [partial(_largest_error, forms, power) for power in POWERS[problem.loss]]


def _series_error(workload: Workload, weights: Array, noise: Array) -> tuple[float, Array]:
    padded = np.zeros(workload.steps)
    padded[: len(noise)] = noise
    b = workload.apply(padded)
    error = float((weights * b) @ b)
    return float(np.log(error)), 2.0 / error * workload.apply_transpose(weights * b)[: len(noise)]


def _form_error(form: Array, noise: Array) -> tuple[float, Array]:
    half = form @ noise
    error = float(noise @ half)
    return float(np.log(error)), 2.0 / error * half


def _largest_error(forms: Array, power: float, noise: Array) -> tuple[float, Array]:
    half = forms @ noise  # (steps, bands)
    value, weights = row_loss(half @ noise, power)
    return value, 2.0 * (weights @ half)
