"""Toeplitz strategies of the literature, by their names."""

from __future__ import annotations

from typing import Any

import numpy as np

from bluegrad import _checks
from bluegrad.strategy.base import Strategy
from bluegrad.strategy.series import Toeplitz, digest
from bluegrad.workload import DenseWorkload, Workload, power_coefficients


def lambda_cgd(steps: int, lam: float) -> Strategy:
    """DP-lambda-CGD: noise z_t - lam z_(t-1), C[i, j] = lam^(i - j); no extra memory.

    Args:
        steps: number of steps n.
        lam: share of the previous step's noise that is taken back, in [0, 1).

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: steps isn't a positive integer, or lam lies outside [0, 1).

    Example:
        >>> lambda_cgd(3, lam=0.5).taps(2)
        array([ 1. , -0.5])

    Source: arXiv 2601.22334, equation 3 and algorithm 1.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    lam = _checks.real(
        "lam", lam, low=0.0, high=1.0, high_open=True,
        fix="0 is DP-SGD; bluegrad.optimize.lambda_cgd finds the best value",
    )  # fmt: skip
    c = np.full(steps, lam)
    c[0] = 1.0
    np.cumprod(c, out=c)
    return Toeplitz("lambda_cgd", steps, {"lam": lam}, given=c, given_noise=np.array([1.0, -lam]))


def nu_dp_ftrl(steps: int, nu: float) -> Strategy:
    """nu-DP-FTRL: N(x) = (1 - (1 - nu) x)^(1/2), noise coefficients (-1)^t binom(1/2, t) (1 - nu)^t.

    Args:
        steps: number of steps n.
        nu: damping in [0, 1); 0 is the square root of the prefix sum.

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: steps isn't a positive integer, or nu lies outside [0, 1).

    Example:
        >>> nu_dp_ftrl(3, nu=0.0).taps(2)
        array([ 1.   , -0.5  , -0.125])

    Source: arXiv 2310.06771, equation 6.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    nu = _checks.real(
        "nu", nu, low=0.0, high=1.0, high_open=True,
        fix="0 is the square root; bluegrad.optimize.nu_dp_ftrl finds the best value",
    )  # fmt: skip
    c = power_coefficients(-0.5, 1.0 - nu, steps)
    n = power_coefficients(0.5, 1.0 - nu, steps)
    return Toeplitz("nu_dp_ftrl", steps, {"nu": nu}, given=c, given_noise=n)


def square_root(workload: Workload) -> Strategy:
    """The square-root factorization C = A^(1/2) of a Toeplitz workload; B = A N = A^(1/2) as well.

    Args:
        workload: a Toeplitz workload A, shape (n, n).

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: workload isn't a bluegrad workload.

    Example:
        >>> from bluegrad.workload import PrefixSum
        >>> square_root(PrefixSum(3)).coefficients()
        array([1.   , 0.5  , 0.375])

    Source: arXiv 2202.11205 (Fichtenberger, Henzinger, Upadhyay), theorem 1.
    """
    _check_workload(workload)
    root, inverse = workload.root(+1), workload.root(-1)
    return Toeplitz("square_root", workload.steps, _workload_parameters(workload), given=root, given_noise=inverse)


def banded_square_root(workload: Workload, bands: int) -> Strategy:
    """BSR: the first `bands` coefficients of the square root C = A^(1/2) of a Toeplitz workload.

    Args:
        workload: a Toeplitz workload A, shape (n, n).
        bands: number of bands of C, from 1 to n; streaming keeps bands - 1 model copies.

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: no or no Toeplitz workload, or bands outside 1 .. n.

    Example:
        >>> from bluegrad.workload import PrefixSum
        >>> banded_square_root(PrefixSum(4), bands=2).coefficients()
        array([1. , 0.5])

    Source: arXiv 2405.13763, definition 1.
    """
    _check_bands(workload, bands)
    parameters = {**_workload_parameters(workload), "bands": bands}
    return Toeplitz("banded_square_root", workload.steps, parameters, given=workload.root(+1)[:bands].copy())


def banded_inverse_square_root(workload: Workload, bands: int) -> Strategy:
    """BISR: noise of the first `bands` coefficients of the inverse square root A^(-1/2) of a Toeplitz workload.

    Args:
        workload: a Toeplitz workload A, shape (n, n).
        bands: number of bands of N = C^-1, from 1 to n.

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: no or no Toeplitz workload, or bands outside 1 .. n.

    Example:
        >>> from bluegrad.workload import PrefixSum
        >>> banded_inverse_square_root(PrefixSum(4), bands=2).taps(3)
        array([ 1. , -0.5])

    Source: arXiv 2505.12128, section 3.
    """
    _check_bands(workload, bands)
    parameters = {**_workload_parameters(workload), "bands": bands}
    root = workload.root(-1)[:bands].copy()
    return Toeplitz("banded_inverse_square_root", workload.steps, parameters, given_noise=root)


def _check_workload(workload: Workload) -> None:
    if not isinstance(workload, Workload):
        raise _checks.fail("workload", workload, "must be a workload", "give bluegrad.PrefixSum(steps)")


def _check_bands(workload: Workload, bands: int) -> None:
    _check_workload(workload)
    fix = f"give 1 to steps={workload.steps} bands"
    if _checks.integer("bands", bands, minimum=1, fix=fix) > workload.steps:
        raise _checks.fail("bands", bands, f"must be at most steps={workload.steps}", fix)


def _workload_parameters(workload: Workload) -> dict[str, Any]:
    """What of a Toeplitz workload determines its root."""
    if isinstance(workload, DenseWorkload):
        return {"workload": "DenseWorkload", "sha256": digest(workload.dense()[:, 0])}
    named = {key: getattr(workload, key) for key in ("momentum", "weight_decay", "coupled") if hasattr(workload, key)}
    rates = getattr(workload, "learning_rates", None)
    rate = {} if rates is None else {"learning_rate": float(rates[0])}
    return {"workload": type(workload).__name__, **named, **rate}
