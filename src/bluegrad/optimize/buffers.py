"""Best buffered linear Toeplitz strategy (BLT): error and sensitivity as closed sums, whatever the horizon."""

from __future__ import annotations

from functools import partial
from math import log

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks, strategy
from bluegrad._checks import Unsupported
from bluegrad.optimize import _pattern, _recursion
from bluegrad.optimize._amplified import Surrogate
from bluegrad.optimize._descent import Descent, Function, descend
from bluegrad.optimize._doubling import geometric
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._problem import POWERS, Problem, Progress, pose
from bluegrad.participation import CyclicPoisson, MinSeparation, Participation
from bluegrad.strategy import Strategy
from bluegrad.workload import Workload

Array = NDArray[np.float64]

_MOST = 10
# Rates 1 - decay and scales that are tried for one more buffer.
_RATES = 14
_SCALES = np.array([1e-5, 1e-3, 1e-2, 0.1, 0.3])
# One more buffer must gain this much in log loss^2.
_GAIN = 1e-7
_LIMIT = 500


def buffered_toeplitz(
    workload: Workload,
    participation: Participation,
    buffers: int,
    *,
    loss: str = "rmse",
    progress: Progress | None = None,
    journal: Journal | None = None,
    privacy: tuple[float, float] | None = None,
) -> Strategy:
    """The buffered linear Toeplitz strategy (BLT) of least loss.

    Minimises sens(C)^2 error(A C^-1)^2 over C(x) = 1 + sum_i w_i x / (1 - q_i x), 0 < q_i < 1, w_i > 0, so that C >= 0;
    under MinSeparation with sum_i w_i < 1 too, so that C doesn't increase. In both cases the sensitivity is that of the
    first pattern, exactly, a sum of geometric series. The noise is the recursion s <- (diag(q) - u u^T) s + u z,
    y = z - u^T s, u = sqrt(w), of a symmetric matrix; the error is summed over the horizon by doubling. Optima of fewer
    buffers are starts for more, each new one at its best place on a grid of decays and scales.

    Args:
        workload: A, n steps. Rates that change take O(n) steps an iteration, others O(log n).
        participation: SinglePass, FixedEpochs, MinSeparation or BallsInBins.
        buffers: most buffers, 1 to 10; streaming keeps one model copy a buffer.
        loss: "rmse" or "max_error".
        progress: called as progress(iteration, value) at every iteration.
        journal: keeps every evaluation in a file, so that an interrupted search continues where it was.
        privacy: (epsilon, delta), needed under BallsInBins: the loss times the noise multiplier there is minimised.

    Returns:
        `bluegrad.buffered_toeplitz(n, decays, scales)`, decays falling, and the record of the search as its
        `optimization`. It has fewer buffers where one more would gain nothing.

    Raises:
        ValueError: unknown loss, buffers outside 1 .. 10, different numbers of steps, or no privacy target where it is
            needed.
        Unsupported: another participation, or a workload without a recursion.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum
        >>> best = buffered_toeplitz(PrefixSum(2000), FixedEpochs(2000, 20), buffers=2)
        >>> round(best.optimization.value, 4)
        21.374

    Source: arXiv 2404.16706, section 3; arXiv 2408.08868 (multi-participation).
    """
    problem = pose(workload, participation, loss, progress, journal, privacy)
    if isinstance(participation, CyclicPoisson):
        raise Unsupported(f"{participation!r}: C has as many bands as steps; use bluegrad.optimize.toeplitz or banded")
    fix = f"give 1 to {_MOST} buffers"
    if _checks.integer("buffers", buffers, minimum=1, fix=fix) > _MOST:
        raise _checks.fail("buffers", buffers, f"must be at most {_MOST}", fix)
    return problem.solved(lambda posed: _found(posed, buffers))


def _found(problem: Problem, buffers: int) -> tuple[Strategy, list[Descent]]:
    """The best strategy and the descents that led to it."""
    errors = _recursion.errors(problem.workload, POWERS[problem.loss])
    x, descents = _with_one_more(problem, errors, np.zeros((0, 2)))
    while len(x) < buffers:
        more, found = _with_one_more(problem, errors, x)
        if descents[-1].value - found[-1].value <= _GAIN:
            break
        x, descents = more, found
    decays, scales = _decays(x), _scales(problem, x)
    order = np.argsort(-decays)
    best = strategy.buffered_toeplitz(problem.steps, decays[order], scales[order])
    return best, descents


def _with_one_more(problem: Problem, errors: list[_recursion.LogError], x: Array) -> tuple[Array, list[Descent]]:
    """Descend from the best place of one more buffer; x holds log(rate / decay) and log scale, shape (buffers, 2)."""
    functions: list[Function] = [problem.through(partial(_objective, problem, error)) for error in errors]
    rates = np.geomspace(0.1 / problem.steps, 0.5, _RATES)
    places = [np.array([[log(rate / (1.0 - rate)), log(scale)]]) for rate in rates for scale in _SCALES]
    starts = [np.concatenate([x, place]).reshape(-1) for place in places]
    values = np.array([functions[0](start)[0] for start in starts])
    # the best place for a small scale too: descent from a large one may end elsewhere
    small = len(_SCALES) * int(np.argmin(values.reshape(_RATES, -1)[:, 0]))
    ends = [_stages(problem, functions, starts[i]) for i in (int(np.argmin(values)), small)]
    best = min(ends, key=lambda descents: descents[-1].value)
    return best[-1].x.reshape(-1, 2), best


def _stages(problem: Problem, functions: list[Function], x: Array) -> list[Descent]:
    """Descents for every power of the loss in turn, each from where the one before ended."""
    descents: list[Descent] = []
    for function in functions:
        descents.append(descend(function, x, limit=_LIMIT, progress=problem.progress))
        x = descents[-1].x
    return descents


def _decays(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(x[:, 0])))


def _scales(problem: Problem, x: Array) -> Array:
    """exp(x), or exp(x) / (1 + sum exp(x)) where C must not increase."""
    scales = np.exp(x[:, 1])
    return np.asarray(scales / (1.0 + scales.sum()) if _falling(problem) else scales)


def _falling(problem: Problem) -> bool:
    return isinstance(problem.law, MinSeparation) and _pattern.participations(problem.law) > 1


def _objective(problem: Problem, log_error: _recursion.LogError, flat: Array) -> tuple[float, Array]:
    """Log of sens^2 error^2 and its gradient in x, flat."""
    x = flat.reshape(-1, 2)
    with np.errstate(all="ignore"):
        q, w = _decays(x), _scales(problem, x)
        if not ((q < 1.0) & (q > 0.0) & (w > 0.0)).all():
            return np.inf, flat
        error, error_q, error_w = log_error(q, w)
        squared, in_q, in_w = squared_sensitivity(problem, q, w)
        value = error + log(squared) if np.isfinite(squared) else np.inf
        in_q, in_w = error_q + in_q / squared, error_w + in_w / squared
    weighted = w * in_w
    in_x = weighted - w * weighted.sum() if _falling(problem) else weighted
    return value, np.stack([-q * (1.0 - q) * in_q, in_x], axis=1).reshape(-1)


def squared_sensitivity(problem: Problem, q: Array, w: Array) -> tuple[float, Array, Array]:
    """Squared norm of s = sum_(j<k) C[:, j b], and its gradients in q and w.

    Between participations m and m + 1, s_(m b + r) = sum_i w_i H_(m+1) q_i^(r-1), H_m = sum_(l<m) q_i^(l b); at them,
    s_(m b) = 1 + sum_i w_i q_i^(b-1) H_m.
    """
    if problem.surrogate is not None:
        return _surrogate(problem.surrogate, problem.steps, q, w)
    n, b = problem.steps, problem.law.separation
    k = _pattern.participations(problem.law)
    lags = b * np.arange(k)[:, None]  # l b
    sums = np.cumsum(np.concatenate([np.zeros((1, len(q))), q**lags]), axis=0)  # H_0 .. H_k
    slopes = np.cumsum(np.concatenate([np.zeros((1, len(q))), lags * q ** (lags - 1.0)]), axis=0)
    products = np.outer(q, q)
    amplitudes = w * sums[1:]  # (participations, buffers)
    squared, in_amplitudes, in_q = 0.0, np.empty_like(amplitudes), np.zeros_like(q)
    for part, terms in ((slice(0, k - 1), b - 1), (slice(k - 1, k), n - 1 - (k - 1) * b)):
        energy, slope = geometric(products, terms)
        a = amplitudes[part]
        gram = a.T @ a
        squared += float((gram * energy).sum())
        in_amplitudes[part] = 2.0 * a @ energy
        in_q += 2.0 * (gram * slope) @ q
    in_w, in_sums = (in_amplitudes * sums[1:]).sum(axis=0), np.zeros_like(sums)
    in_sums[1:] += in_amplitudes * w
    last = q ** (b - 1)
    starts = 1.0 + sums[:-1] @ (w * last)  # (participations,)
    squared += float(starts @ starts)
    reach = 2.0 * starts @ sums[:-1]
    in_w += last * reach
    in_q += w * (b - 1) * q ** (b - 2.0) * reach
    in_sums[:-1] += 2.0 * np.outer(starts, w * last)
    return squared, in_q + (in_sums * slopes).sum(axis=0), in_w


def _surrogate(surrogate: Surrogate, steps: int, q: Array, w: Array) -> tuple[float, Array, Array]:
    """The same of the surrogate, from the coefficients c_t = sum_i w_i q_i^(t-1)."""
    ages = np.arange(steps - 1)[:, None]
    powers = q**ages  # (steps - 1, buffers)
    squared, in_c = surrogate.squared(np.concatenate([[1.0], powers @ w]))
    return squared, w * (in_c[1:] @ (ages * powers)) / q, in_c[1:] @ powers
