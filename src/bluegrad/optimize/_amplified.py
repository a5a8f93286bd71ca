"""Least noise under balls-in-bins: noise multiplier at a privacy target, times the loss.

The multiplier has no closed form. What is minimised instead is s^2 ||A C^-1||^2, s the deviation of the noise at which
a divergence of second order, r = log mean_ij exp(<m_i, m_j> / s^2), has a given value; it is smooth in C, and every r
has its best strategy. For large r s is the largest bin's norm (no amplification), for small r the norm of their mean.
r itself is searched by the multiplier that accounting estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from bluegrad import _checks, _series, accounting
from bluegrad._checks import Unsupported
from bluegrad.optimize import _pattern
from bluegrad.participation import BallsInBins, FixedEpochs, Participation
from bluegrad.strategy import Strategy

Array = NDArray[np.float64]

# Divergences r to look at first, and how closely the best one is searched (log r, where the noise is flat).
_DIVERGENCES = np.geomspace(0.01, 100.0, 9)
_CLOSE = 0.1
_SEARCHED = 8


class Privacy(NamedTuple):
    """Where the noise multiplier is calibrated."""

    epsilon: float
    delta: float

    def multiplier(self, strategy: Strategy, law: Participation) -> float:
        """Estimate of the noise multiplier."""
        return accounting.estimate_multiplier(strategy, law, epsilon=self.epsilon, delta=self.delta)


def check_privacy(privacy: tuple[float, float] | None, participation: Participation) -> Privacy | None:
    """The target as a record; needed under balls-in-bins, where the best strategy depends on it.

    Raises:
        ValueError: it is missing there, isn't a pair, or out of range.
    """
    if privacy is None:
        if isinstance(participation, BallsInBins):
            raise _checks.fail(
                "privacy", None, f"is needed under {participation!r}: the best strategy depends on the target",
                "give privacy=(epsilon, delta)",
            )  # fmt: skip
        return None
    if not isinstance(privacy, tuple) or len(privacy) != 2:
        raise _checks.fail("privacy", privacy, "must be a pair", "give privacy=(epsilon, delta), such as (8.0, 1e-5)")
    return Privacy(_checks.epsilon(privacy[0]), _checks.delta(privacy[1]))


class Surrogate(NamedTuple):
    """Squared deviation s^2 of the noise at which log mean_ij exp(G_ij / s^2) = divergence, for Toeplitz C >= 0.

    G_ij is taken as G_0|i-j|, of the earliest bins, which nothing cuts off: the largest.
    """

    law: FixedEpochs
    divergence: float

    def squared(self, c: Array) -> tuple[float, Array]:
        """s^2 and its gradient in the coefficients c, shape (bands,), by FFT in O(n log n)."""
        n, b = self.law.steps, self.law.separation
        first = _pattern.repeated(c, self.law)  # m_0
        products = _series.multiply(first[::-1].copy(), first, n)[::-1][:b]  # <m_0, m_d>
        d = np.arange(b)
        shares = np.where(d == 0, 1.0, 2.0) * (b - d) / (b * b)
        low, high = float(shares @ products) / self.divergence, float(products.max()) / self.divergence

        def excess(log_square: float) -> float:
            exponents = products / exp(log_square)
            top = float(exponents.max())
            return top + log(float(shares @ np.exp(exponents - top))) - self.divergence

        root = log(high)
        if low < high * (1.0 - 1e-12):  # Jensen's inequality and the largest entry enclose it
            root = float(brentq(excess, log(low) - 1e-9, log(high) + 1e-9, xtol=1e-13))
        square = exp(root)
        tilted = shares * np.exp((products - float(products.max())) / square)
        kernel = np.zeros(n)
        kernel[:b] = tilted
        ahead = _series.multiply(first[::-1].copy(), kernel, n)[::-1]
        slope = square * (_series.multiply(first, kernel, n) + ahead) / float(tilted @ products)
        return square, _pattern.repeated_transpose(slope, self.law)[: len(c)]


def search(
    find: Callable[[Surrogate], Strategy], noise: Callable[[Strategy], float], law: BallsInBins
) -> tuple[Strategy, float]:
    """The strategy of least noise among the best for every divergence.

    Args:
        find: the best strategy for a surrogate.
        noise: what counts in the end; infinite for a strategy that isn't allowed.
        law: bins.

    Raises:
        Unsupported: none of them is allowed.
    """
    fixed = FixedEpochs(law.steps, law.epochs)
    found: dict[float, tuple[Strategy, float]] = {}

    def tried(log_divergence: float) -> float:
        strategy = find(Surrogate(fixed, exp(log_divergence)))
        found[log_divergence] = strategy, noise(strategy)
        return found[log_divergence][1]

    grid = np.log(_DIVERGENCES)
    values = [tried(float(x)) for x in grid]
    if min(values) == inf:
        raise Unsupported(f"no strategy without negative entries was found under {law!r}; use another family")
    best = int(np.argmin(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    minimize_scalar(tried, bounds=(low, high), method="bounded", options={"xatol": _CLOSE, "maxiter": _SEARCHED})
    return min(found.values(), key=lambda pair: pair[1])
