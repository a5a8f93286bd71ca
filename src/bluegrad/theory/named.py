"""Transfer functions of the literature's mechanisms, of coefficients and of bluegrad strategies."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bluegrad import _checks
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import check_strategy
from bluegrad.strategy.buffered import Buffered
from bluegrad.theory.transfer import Autoregressive, Factored, Moving, Transfer


def white() -> Transfer:
    """Independent noise, N = 1: DP-SGD.

    Returns:
        The transfer function.

    Example:
        >>> white().gamma
        1.0

    Source: arXiv 2310.06771, table 1.
    """
    return Factored("white", (), ())


def damped_root(nu: float) -> Transfer:
    """nu-DP-FTRL over endless steps: N(x) = (1 - (1 - nu) x)^(1/2).

    Args:
        nu: damping in [0, 1); 0 is the undamped square root, whose sensitivity diverges.

    Returns:
        The transfer function, |N(w)|^2 = |1 - (1 - nu) e^(iw)|.

    Raises:
        ValueError: nu lies outside [0, 1).

    Example:
        >>> round(damped_root(0.1).gamma ** 2, 6)
        1.451843
        >>> damped_root(0.0).gamma
        inf

    Source: arXiv 2310.06771, equation 7.
    """
    nu = _checks.real("nu", nu, low=0.0, high=1.0, high_open=True, fix="commonly eta times the least eigenvalue")
    return Factored(f"damped_root(nu={nu:g})", (1.0 - nu,), (0.5,))


def damped_difference(nu: float) -> Transfer:
    """Damped Anti-PGD, which is lambda-CGD with lam = 1 - nu: N(x) = 1 - (1 - nu) x.

    Args:
        nu: damping in [0, 1); 0 is Anti-PGD, whose sensitivity diverges.

    Returns:
        The transfer function, |N(w)|^2 = |1 - (1 - nu) e^(iw)|^2.

    Raises:
        ValueError: nu lies outside [0, 1).

    Example:
        >>> damped_difference(0.0).gamma
        inf

    Source: arXiv 2310.06771, table 2; arXiv 2601.22334.
    """
    nu = _checks.real("nu", nu, low=0.0, high=1.0, high_open=True, fix="commonly (2 eta)^(1/2)")
    return Factored(f"damped_difference(nu={nu:g})", (1.0 - nu,), (1.0,))


def moving(coefficients: ArrayLike) -> Transfer:
    """Noise as a moving average of raw noise, zero past the last coefficient.

    Args:
        coefficients: n_0, n_1, ..., shape (bands,), n_0 not zero.

    Returns:
        The transfer function; its gamma is inf unless all zeros of N lie outside the unit disc.

    Raises:
        ValueError: bad shape, an entry that isn't finite, or n_0 = 0.

    Example:
        >>> moving([1.0, -1.0]).gamma
        inf

    Source: arXiv 2310.06771, property C.1.
    """
    x = _leading("coefficients", coefficients)
    return Moving(f"moving({len(x)} coefficients)", x)


def factored(bases: ArrayLike, exponents: ArrayLike) -> Transfer:
    """N(x) = prod_i (1 - r_i x)^(p_i).

    Args:
        bases: r, shape (k,), each in [-1, 1].
        exponents: p, shape (k,).

    Returns:
        The transfer function.

    Raises:
        ValueError: bases outside [-1, 1], or different lengths.

    Example:
        >>> factored([0.9, 0.5], [0.5, 0.5]).coefficients(3)
        array([ 1.  , -0.7 , -0.02])

    Source: arXiv 2310.06771, section 2.
    """
    r = _checks.vector("bases", bases, fix="give one base in [-1, 1] a factor")
    p = _checks.vector("exponents", exponents, fix="give one exponent a factor")
    if len(p) != len(r):
        raise _checks.fail("len(exponents)", len(p), f"must equal len(bases)={len(r)}", "give one of each a factor")
    if (np.abs(r) > 1.0).any():
        bad = int(np.flatnonzero(np.abs(r) > 1.0)[0])
        raise _checks.fail(f"bases[{bad}]", float(r[bad]), "must lie in [-1, 1]", "others make noise that grows")
    return Factored(f"factored({len(r)} factors)", tuple(map(float, r)), tuple(map(float, p)))


def transfer(strategy: Strategy) -> Transfer:
    """Transfer function of a Toeplitz strategy, continued over endless steps by the law it is named after.

    Args:
        strategy: identity, lambda_cgd, nu_dp_ftrl, square_root of a prefix sum or momentum, buffered_toeplitz, or any
            Toeplitz strategy whose C or N has fewer coefficients than steps.

    Returns:
        The transfer function.

    Raises:
        ValueError: not Toeplitz, or nothing tells how its coefficients continue past its steps.

    Example:
        >>> from bluegrad import nu_dp_ftrl
        >>> transfer(nu_dp_ftrl(100, nu=0.1)) == damped_root(0.1)
        True

    Source: arXiv 2310.06771, table 2.
    """
    check_strategy(strategy)
    c, n = strategy.coefficients(), strategy.noise_coefficients()
    if c is None or n is None:
        raise _checks.fail("strategy", strategy, "isn't Toeplitz", "only Toeplitz noise has a transfer function")
    named = _named(strategy)
    if named is not None:
        return named
    if len(n) < strategy.steps and len(n) <= len(c):
        return Moving(repr(strategy), n)
    if len(c) < strategy.steps:
        return Autoregressive(repr(strategy), c)
    raise _checks.fail(
        "strategy", strategy, "has as many coefficients as steps, so that nothing tells how they continue",
        "give bluegrad.theory.moving(coefficients), or the strategy over more steps than coefficients",
    )  # fmt: skip


def _named(strategy: Strategy) -> Transfer | None:
    if isinstance(strategy, Buffered):
        poles, _ = strategy.noise_buffers
        bases = (*map(float, strategy.decays), *map(float, poles))
        return Factored(repr(strategy), bases, (1.0,) * len(strategy.decays) + (-1.0,) * len(poles))
    description = strategy.describe()
    kind, parameters = description["name"], description["parameters"]
    if kind == "identity":
        return white()
    if kind == "lambda_cgd":
        return damped_difference(1.0 - parameters["lam"])
    if kind == "nu_dp_ftrl":
        return damped_root(parameters["nu"])
    if kind == "square_root" and parameters["workload"] in {"PrefixSum", "Sgd"} and not parameters.get("coupled"):
        shrinkage, momentum = 1.0 - parameters.get("weight_decay", 0.0), parameters.get("momentum", 0.0)
        expected = Factored("square_root", (shrinkage, momentum), (0.5, 0.5))
        found = strategy.noise_coefficients()
        assert found is not None
        # a constant learning rate scales N, and the law is checked against the coefficients themselves
        if np.allclose(found / found[0], expected.coefficients(strategy.steps)[: len(found)], atol=1e-12):
            return expected
    return None


def _leading(name: str, values: ArrayLike) -> np.ndarray:
    x = _checks.vector(name, values, fix="give the first coefficients")
    if x[0] == 0.0:
        raise _checks.fail(f"{name}[0]", 0.0, "must not be zero", "the noise of a step must contain new noise")
    return x
