"""Closed forms of the asymptotic suboptimality, and bounds on it that hold for every spectrum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from bluegrad import _checks
from bluegrad.strategy.base import Array
from bluegrad.theory.problem import Problem, check_problem

# Lemma C.21 of arXiv 2310.06771: int |1 - a - e^(iw)| / |1 - b - e^(iw)|^2 dw <= 5 log(8 / a) for a <= b <= 1.
_ROOT_INTEGRAL = 5.0 / (2.0 * math.pi)


def white_private(problem: Problem) -> float:
    """Private error of independent noise: (eta^2 G^2 / (4 rho)) sum_j 1 / (eta (2 - eta l_j)).

    Args:
        problem: the quadratic problem.

    Returns:
        The private part of F_inf, about eta d G^2 / (8 rho).

    Raises:
        ValueError: problem is of another kind.

    Example:
        >>> round(white_private(Problem([1.0], learning_rate=0.1)), 7)
        0.0131579

    Source: arXiv 2310.06771, table 1.
    """
    check_problem(problem)
    _, counts = problem.groups
    return problem.price * float(counts @ (1.0 / (problem.learning_rate * (2.0 - problem.rates))))


def difference_private(problem: Problem, nu: float) -> float:
    """Private error of damped Anti-PGD (lambda-CGD, lam = 1 - nu), inf at nu = 0.

    gamma^2 = 1 / (1 - lam^2), and direction j has gain (1 + lam^2 - 2 lam (1 - a)) / (a (2 - a)), a = eta l_j.

    Args:
        problem: the quadratic problem.
        nu: damping in [0, 1).

    Returns:
        The private part of F_inf.

    Raises:
        ValueError: nu lies outside [0, 1), or problem is of another kind.

    Example:
        >>> p = Problem([1.0], learning_rate=0.1)
        >>> math.isclose(difference_private(p, nu=0.1), white_private(p))
        True

    Source: arXiv 2310.06771, proposition C.24.
    """
    check_problem(problem)
    nu = _damping(nu)
    if nu == 0.0:
        return math.inf
    values, counts = problem.groups
    a = problem.rates
    # 1 + lam^2 - 2 lam (1 - a) = nu^2 + 2 (1 - nu) a
    gain = (nu * nu + 2.0 * (1.0 - nu) * a) / (a * (2.0 - a))
    return problem.price / (nu * (2.0 - nu)) * float((counts * values) @ gain)


def root_private(problem: Problem, nu: float) -> float:
    """Private error of nu-DP-FTRL by complete elliptic integrals, inf at nu = 0.

    gamma^2 = (2 / pi) K(m = (1 - nu)^2); the gain of a direction is an integral of the third kind.

    Args:
        problem: the quadratic problem.
        nu: damping in [0, 1).

    Returns:
        The private part of F_inf.

    Raises:
        ValueError: nu lies outside [0, 1), or problem is of another kind.

    Example:
        >>> round(root_private(Problem([1.0], learning_rate=0.1), nu=0.1) / 0.1**2, 6)
        0.526962

    Source: arXiv 2310.06771, proposition C.22 and lemma F.16; the elliptic form is Carlson's.
    """
    check_problem(problem)
    nu = _damping(nu)
    if nu == 0.0:
        return math.inf
    values, counts = problem.groups
    gamma2 = 2.0 / math.pi * special.ellipkm1(nu * (2.0 - nu))
    return float(problem.price * gamma2 * ((counts * values) @ root_gain(nu, problem.rates)))


def root_gain(nu: float, rates: Array) -> Array:
    """Mean over w of |1 - (1 - nu) e^(iw)| / |1 - a - e^(iw)|^2 for every a in (0, 2), nu > 0."""
    a = np.asarray(rates, dtype=np.float64)
    # with s the squared sine of an angle and r = 1 - nu, q = 1 - a: mean of sqrt((1+r)^2 - 4 r s) / ((1+q)^2 - 4 q s),
    # (1 + r) / (1 + q)^2 times that of sqrt(1 - k s) / (1 - m s); 1 - k and 1 - m are known without cancellation
    less_k, less_m = (nu / (2.0 - nu)) ** 2, (a / (2.0 - a)) ** 2
    # (1 - k s) / (1 - m s) = 1 + (m - k) s / (1 - m s)
    first = special.elliprf(0.0, less_k, 1.0)
    third = special.elliprj(0.0, less_k, 1.0, less_m) / 3.0
    return np.asarray(2.0 / math.pi * (2.0 - nu) / (2.0 - a) ** 2 * (first + (less_k - less_m) * third))


@dataclass(frozen=True)
class Bounds:
    """Bounds on a private and an SGD error."""

    private: float
    sgd: float


def lower_bounds(problem: Problem) -> Bounds:
    """What no noise of finite sensitivity can beat, in terms of Tr H alone.

    Private: eta^2 G^2 Tr H / (4 rho). By Cauchy and Schwarz gamma^2 int |N|^2 h >= (int h^(1/2))^2, by Minkowski that
    is at least the sum over directions, and the mean of |1 - a - e^(iw)|^(-1) is at least 1. SGD: eta s_sgd^2 Tr H / 4,
    as 2 - eta l_j < 2.

    Args:
        problem: the quadratic problem.

    Returns:
        Lower bounds on both parts.

    Raises:
        ValueError: problem is of another kind.

    Example:
        >>> lower_bounds(Problem([1.0, 1.0], learning_rate=0.5)).private
        0.125

    Source: after arXiv 2310.06771, theorem C.18 (with constants of the linear part).
    """
    check_problem(problem)
    return Bounds(problem.price * problem.trace, problem.learning_rate * problem.sgd_noise**2 * problem.trace / 4.0)


def root_upper_bounds(problem: Problem, nu: float) -> Bounds:
    """Upper bounds for nu-DP-FTRL: eta^2 log^2(8 / nu) Tr H takes the place of DP-SGD's eta d.

    Args:
        problem: the quadratic problem, eta L <= 1.
        nu: damping in (0, eta mu], mu the least eigenvalue.

    Returns:
        Upper bounds on both parts.

    Raises:
        ValueError: nu outside (0, eta mu], eta L above 1, or problem is of another kind.

    Example:
        >>> p = Problem([1.0, 0.1], learning_rate=0.1)
        >>> root_private(p, 0.01) <= root_upper_bounds(p, 0.01).private
        True

    Source: arXiv 2310.06771, lemma C.21 and proposition C.22.
    """
    check_problem(problem)
    a = problem.rates
    if a[-1] > 1.0:
        raise _checks.fail("learning_rate", problem.learning_rate, "must be at most 1 / L here", "use a smaller one")
    nu = _checks.real(
        "nu", nu, low=0.0, high=float(a[0]), low_open=True, fix="the bound holds up to eta times the least eigenvalue"
    )
    part = _ROOT_INTEGRAL * math.log(8.0 / nu)
    return Bounds(
        problem.price * part * part * problem.trace, problem.learning_rate * problem.sgd_noise**2 * problem.trace / 2.0
    )


def _damping(nu: float) -> float:
    return _checks.real("nu", nu, low=0.0, high=1.0, high_open=True, fix="commonly eta times the least eigenvalue")
