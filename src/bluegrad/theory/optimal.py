"""The best noise for a spectrum, |N*|^2 = h^(-1/2), and its causal coefficients by spectral factorisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from scipy import fft

from bluegrad import _checks
from bluegrad.optimize import approximated
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import Array
from bluegrad.theory.problem import Problem, check_problem
from bluegrad.theory.transfer import Factored, Transfer, check_length, exponential

_FIRST, _MOST = 12, 22  # log2 of grid sizes
_BISECTIONS = 110
# Most different eigenvalues whose zeros are found one by one, in O(d^2).
_FACTORS = 2048


@final
@dataclass(frozen=True, eq=False)
class Shaped(Transfer):
    """The minimum-phase N whose power is a given even function of frequency, at least `narrow` wide at 0."""

    name: str
    density: Callable[[Array], Array]
    narrow: float

    def power(self, frequencies: Array) -> Array:
        """|N(w)|^2."""
        return self.density(np.asarray(frequencies)) / self._scale

    @cached_property
    def _scale(self) -> float:
        # n_0^2 of the minimum-phase factor
        return math.exp(Transfer.mean(self, lambda w: np.log(self.density(w)), self.narrow))

    @cached_property
    def gamma(self) -> float:
        """Square root of the mean of 1 / |N|^2."""
        return math.sqrt(self.mean(lambda w: 1.0 / self.power(w), self.narrow))

    def coefficients(self, length: int) -> Array:
        """By the cepstrum on a uniform grid."""
        return minimum_phase(self.density, length)

    def gain(self, rates: Array) -> Array:
        """By quadrature."""
        return self._quadrature_gain(rates)

    @property
    def _low(self) -> float:  # type: ignore[override]
        return self.narrow

    @property
    def _high(self) -> float:  # type: ignore[override]
        return self.narrow


def optimal_noise(problem: Problem) -> Transfer:
    """The noise of least asymptotic suboptimality among all Toeplitz noisings.

    By Cauchy and Schwarz (int |N|^-2)(int |N|^2 h) is least for |N|^2 = h^(-1/2). For eta L < 1, h is a ratio of
    polynomials in 2 - 2 cos(w) whose zeros lie between its poles, so that N is a product of powers (1 - r x)^(+-1/2)
    and nothing is lost to a grid, however ill-conditioned H may be (up to 2048 different eigenvalues).

    Args:
        problem: the quadratic problem; only eigenvalues and learning rate matter.

    Returns:
        The transfer function, causal and minimum-phase, n_0 = 1.

    Raises:
        ValueError: problem is of another kind.

    Example:
        >>> optimal_noise(Problem([1.0], learning_rate=0.1)).coefficients(3)
        array([ 1.     , -0.45   , -0.10125])

    Source: arXiv 2310.06771, theorem 2.1 and section 2.2.
    """
    check_problem(problem)
    a = problem.rates
    if a[-1] < 1.0 and len(a) <= _FACTORS:
        poles, zeros = 1.0 - a, _zeros(problem)
        bases = (*map(float, poles), *map(float, zeros))
        return Factored(f"optimal({len(a)} eigenvalues)", bases, (0.5,) * len(poles) + (-0.5,) * len(zeros))
    narrow = float(min(a[0], 2.0 - a[-1], 1.0))
    return Shaped(f"optimal({len(a)} eigenvalues)", lambda w: problem.response(w) ** -0.5, narrow)


def optimal_private(problem: Problem) -> float:
    """The least private error of any Toeplitz noise: (eta^2 G^2 / (4 rho)) (mean of h^(1/2))^2.

    Args:
        problem: the quadratic problem.

    Returns:
        The private part of F_inf under the optimal noise.

    Raises:
        ValueError: problem is of another kind.

    Example:
        >>> round(2 * optimal_private(Problem([1.0], learning_rate=0.1)), 7)
        0.0105392

    Source: arXiv 2310.06771, theorem 2.1.
    """
    check_problem(problem)
    a = problem.rates
    shape = Shaped("response", problem.response, float(min(a[0], 2.0 - a[-1], 1.0)))
    return problem.price * shape.mean(lambda w: np.sqrt(problem.response(w)), shape.narrow) ** 2


def optimal_strategy(problem: Problem, steps: int, *, tolerance: float | None = None) -> Strategy:
    """The optimal noise as a strategy that trains.

    Args:
        problem: the quadratic problem.
        steps: number of steps n.
        tolerance: None keeps all n coefficients exactly (and the noise of all steps); else a BLT with as few buffers
            as bring its RMSE within this relative distance.

    Returns:
        The strategy.

    Raises:
        ValueError: steps isn't positive, or the tolerance isn't reached (see `bluegrad.approximated`).

    Example:
        >>> optimal_strategy(Problem([1.0, 0.1], learning_rate=0.1), 200, tolerance=0.01).memory <= 5
        True

    Source: arXiv 2310.06771, section 2.2; arXiv 2404.16706, section 4.
    """
    exact = optimal_noise(problem).strategy(steps)
    return exact if tolerance is None else approximated(exact, tolerance)


def minimum_phase(density: Callable[[Array], Array], length: int, *, tolerance: float = 1e-12) -> Array:
    """Coefficients of the causal, minimum-phase filter of a given power, n_0 = 1, by the cepstrum.

    log|N| is sampled on a uniform grid; its Fourier coefficients, those of negative time folded onto the causal half,
    are the logarithm of N(x) as a series. The grid doubles until the coefficients stay.

    Args:
        density: |N(w)|^2 > 0, even, from frequencies in [0, pi].
        length: how many coefficients.
        tolerance: largest change of a coefficient under one doubling of the grid.

    Returns:
        n_0 .. n_(length - 1), scaled to n_0 = 1.

    Raises:
        ValueError: a length out of range, a density that isn't positive and finite, or one too narrow for 2^22 points.

    Example:
        >>> minimum_phase(lambda w: 1.25 + np.cos(w), 3).round(9)
        array([1. , 0.5, 0. ])

    Source: Oppenheim and Schafer, homomorphic filtering; arXiv 2310.06771, section 2.2.
    """
    check_length(length)
    last: Array | None = None
    for size in range(max(_FIRST, math.ceil(math.log2(2 * length + 1))), _MOST + 1):
        w = np.linspace(0.0, math.pi, 2 ** (size - 1) + 1)
        power = np.asarray(density(w))
        if not (np.isfinite(power).all() and (power > 0.0).all()):
            raise _checks.fail("density", density, "must be positive and finite", "factor zeros and poles out first")
        log = fft.irfft(np.log(power))[:length]  # log|N|^2 = 2 Re log N: coefficient t >= 1 belongs to N as it is
        log[0] = 0.0
        out = exponential(log)
        if last is not None and float(np.abs(out - last).max()) <= tolerance:
            return out
        last = out
    raise _checks.fail(
        "density", density, f"is too narrow for a grid of 2^{_MOST} points",
        "for a quadratic problem with eta L < 1, optimal_noise needs no grid",
    )  # fmt: skip


def _zeros(problem: Problem) -> Array:
    """Bases s of the zeros of h, one between every two poles, by bisection in the logarithm of the distance to 1.

    With x = 2 - 2 cos(w): |1 - (1 - a) e^(iw)|^2 = (1 - a)(x + p), p = a^2 / (1 - a), so h is a sum of positive
    multiples of 1 / (x + p) and vanishes once between -p_(j+1) and -p_j.
    """
    values, counts = problem.groups
    a = problem.rates
    p = a * a / (1.0 - a)
    weights = counts * values / (1.0 - a)
    low, high = np.log(p[:-1]), np.log(p[1:])
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        # h at x = -exp(middle) rises there from minus to plus infinity as exp(middle) rises towards the next pole
        h = (weights / (p - np.exp(middle)[:, None])).sum(axis=1)
        low, high = np.where(h < 0.0, middle, low), np.where(h < 0.0, high, middle)
    z = np.exp((low + high) / 2.0)
    # z = (1 - s)^2 / s
    root = np.sqrt(z)
    return (np.sqrt(1.0 + z / 4.0) - root / 2.0) ** 2
