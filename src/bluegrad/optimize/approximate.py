"""Few buffers in place of a long memory: a full Toeplitz strategy as a BLT of stated accuracy."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from bluegrad import _checks, score
from bluegrad.participation import Participation
from bluegrad.strategy.base import Array, Strategy, check_strategy
from bluegrad.strategy.buffered import buffered_toeplitz
from bluegrad.workload import PrefixSum, Workload

_MOST_BUFFERS = 24
# Entries of C below this share of |c| / n can't add up to anything: they needn't be right to a relative error.
_FLOOR = 0.1
_REWEIGHTED = 4


def approximated(
    strategy: Strategy,
    tolerance: float = 1e-3,
    *,
    workload: Workload | None = None,
    participation: Participation | None = None,
) -> Strategy:
    """A BLT with few buffers in place of a Toeplitz strategy whose stream would keep the whole noise history.

    c_t / c_0 is fitted by sum_i w_i q_i^(t-1), w_i > 0, in relative error over the whole horizon, with as few buffers
    as keep RMSE within `tolerance` of the strategy's. What is returned is an ordinary `buffered_toeplitz`: its
    sensitivity and error are its own.

    Args:
        strategy: a Toeplitz strategy with positive coefficients, such as nu_dp_ftrl or square_root.
        tolerance: largest relative difference in RMSE, in (0, 1).
        workload: A, for the error; the prefix sum if not given.
        participation: for which the difference is computed; if not given, a bound on it holds for every participation,
            at the price of a few buffers more.

    Returns:
        The BLT, c_0 = 1.

    Raises:
        ValueError: no Toeplitz strategy, coefficients that aren't positive or can't be fitted so closely by 24 buffers,
            a tolerance outside (0, 1), or another number of steps.

    Example:
        >>> from bluegrad import nu_dp_ftrl
        >>> approximated(nu_dp_ftrl(1000, nu=0.01), tolerance=1e-2).memory
        5

    Source: arXiv 2404.16706, section 4 (rational approximation); arXiv 2408.08868.
    """
    check_strategy(strategy)
    _checks.real("tolerance", tolerance, low=0.0, high=1.0, low_open=True, high_open=True, fix="commonly 1e-3")
    c, noise = strategy.coefficients(), strategy.noise_coefficients()
    fix = "approximate a full Toeplitz strategy, such as bluegrad.nu_dp_ftrl(steps, nu)"
    if c is None or noise is None:
        raise _checks.fail("strategy", strategy, "isn't Toeplitz", fix)
    work = PrefixSum(strategy.steps) if workload is None else workload
    if work.steps != strategy.steps:
        raise _checks.fail("workload.steps", work.steps, f"must equal the strategy's steps={strategy.steps}", fix)
    target = np.zeros(strategy.steps)
    target[: len(c)] = c / c[0]
    if (target < 0.0).any() or not target[1:].any():
        raise _checks.fail("strategy", strategy, "must have positive coefficients, more than the first", fix)
    exact = float(np.linalg.norm(work.row_norms(noise))) * abs(float(c[0]))
    closest = np.inf
    for buffers in range(1, _MOST_BUFFERS + 1):
        for decays, scales in _fits(target, buffers):
            fit = buffered_toeplitz(strategy.steps, decays, scales)
            if participation is None:
                off = _distance(fit, target, work, exact)
            else:
                off = abs(score.rmse(fit, work, participation) / score.rmse(strategy, work, participation) - 1.0)
            closest = min(closest, off)
            if off <= tolerance:
                return fit
    raise _checks.fail(
        "tolerance", tolerance, f"isn't reached by {_MOST_BUFFERS} buffers, which come within {closest:.2g}",
        "give a larger one, or keep the exact strategy",
    )  # fmt: skip


def _distance(fit: Strategy, target: Array, workload: Workload, exact: float) -> float:
    """Bound on the relative difference in RMSE under any participation."""
    c, noise = fit.coefficients(), fit.noise_coefficients()
    assert c is not None and noise is not None
    floor = _floor(target)
    change = (1.0 + _FLOOR) * float(np.abs((c - target) / np.maximum(target, floor)).max())
    ratio = float(np.linalg.norm(workload.row_norms(noise))) / exact
    return max((1.0 + change) * ratio - 1.0, 1.0 - (1.0 - change) * ratio)


def _floor(target: Array) -> float:
    return _FLOOR * float(np.linalg.norm(target)) / len(target)


def _fits(target: Array, buffers: int) -> list[tuple[Array, Array]]:
    """Least-squares fit in relative error on a grid of steps, then reweighted towards the least maximum."""
    n = len(target)
    t = np.unique(np.concatenate([np.arange(1, min(n, 65)), np.geomspace(1, n - 1, 400).astype(int)]))
    t = t[t < n]
    size = np.maximum(target[t], _floor(target))
    weight = np.ones(len(t))

    def terms(x: Array) -> tuple[Array, Array]:
        rates, scales = np.exp(x[:buffers]), np.exp(x[buffers:])
        return rates, scales * np.exp(-np.outer(t - 1, rates)) / size[:, None]  # (steps, buffers)

    def residual(x: Array) -> Array:
        return weight * (terms(x)[1].sum(axis=1) - target[t] / size)

    def jacobian(x: Array) -> Array:
        rates, values = terms(x)
        return weight[:, None] * np.concatenate([-(t - 1)[:, None] * rates * values, values], axis=1)

    x, out = _start(target, t, size, buffers), []
    bounds = ([-np.log(1e3 * n)] * buffers + [-60.0] * buffers, [4.0] * buffers + [4.0] * buffers)
    for _ in range(_REWEIGHTED):
        x = least_squares(residual, np.clip(x, *np.array(bounds)), jac=jacobian, bounds=bounds, x_scale="jac").x
        error = np.abs(residual(x)) / weight
        out.append((np.exp(-np.exp(x[:buffers])), np.exp(x[buffers:])))
        weight = weight * np.sqrt(error / error.max() + 1e-3)
    return out


def _start(target: Array, t: NDArray[np.intp], size: Array, buffers: int) -> Array:
    """Rates log-spaced over the scales of the horizon that the strategy remembers, scales by linear least squares."""
    long = np.flatnonzero(target > _floor(target))[-1] + 1
    rates = np.geomspace(1.0 / long, 2.0, buffers) if buffers > 1 else np.array([3.0 / sqrt(long)])
    values = np.exp(-np.outer(t - 1, rates)) / size[:, None]
    scales, *_ = np.linalg.lstsq(values, target[t] / size, rcond=None)
    return np.concatenate([np.log(rates), np.log(np.maximum(scales, 1e-3 * float(np.abs(scales).max())))])
