"""The exact Gaussian mechanism: correlated noise without amplification is one release of C G + noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, expm1, log, log1p, pi, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

# Relative margin of a root towards privacy: far above the rounding of the formula, far below what matters.
MARGIN = 1e-9


@dataclass(frozen=True)
class Gaussian:
    """Privacy curve of Normal(0, s^2) against Normal(1, s^2), s the noise multiplier.

    delta(epsilon) = Phi(1/(2 s) - epsilon s) - e^epsilon Phi(-1/(2 s) - epsilon s).

    Source: Balle and Wang 2018, theorem 8; arXiv 2202.08312 (Denisov et al.) for adaptively chosen gradients.
    """

    noise_multiplier: float

    def delta(self, epsilon: float) -> float:
        """Smallest delta at this epsilon >= 0, rounded up by the margin."""
        return min(1.0, exp(_log_delta(self.noise_multiplier, epsilon)) * (1.0 + MARGIN))

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at this delta, rounded up by the margin."""
        target = log(delta)

        def excess(epsilon: float) -> float:
            return _log_delta(self.noise_multiplier, epsilon) - target

        if excess(0.0) <= 0.0:
            return 0.0
        high = 1.0
        while excess(high) > 0.0:
            high *= 2.0
        root = float(brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-13))
        return _towards(lambda x: excess(x) <= 0.0, root)


def calibrate(epsilon: float, delta: float) -> float:
    """Smallest noise multiplier of the Gaussian mechanism for (epsilon, delta), rounded up by the margin."""
    target = log(delta)

    def excess(log_multiplier: float) -> float:
        return _log_delta(exp(log_multiplier), epsilon) - target

    low, high = -1.0, 1.0
    while excess(low) <= 0.0:
        low -= 1.0
    while excess(high) > 0.0:
        high += 1.0
    root = exp(float(brentq(excess, low, high, xtol=1e-14, rtol=1e-13)))
    # four margins, so that `epsilon` of what comes back, with its own margin, doesn't exceed the target
    return _towards(lambda s: _log_delta(s, epsilon) <= target, root * (1.0 + 3.0 * MARGIN))


def _towards(private: Callable[[float], bool], root: float) -> float:
    """The root moved up by the margin, then further until the formula itself agrees that it is private."""
    value, step = root * (1.0 + MARGIN), MARGIN
    while not private(value):
        step *= 2.0
        value = root * (1.0 + step)
    return value


def _log_delta(multiplier: float, epsilon: float) -> float:
    """log delta, in logarithms so that delta = 1e-300 keeps its digits."""
    if multiplier > _LARGE:
        return _log_delta_by_quadrature(multiplier, epsilon)
    above = float(log_ndtr(0.5 / multiplier - epsilon * multiplier))
    below = epsilon + float(log_ndtr(-0.5 / multiplier - epsilon * multiplier))
    gap = below - above  # log(e^above - e^below), by whichever form loses nothing
    return above + (log1p(-exp(gap)) if gap < -0.7 else log(-expm1(gap)))


def _log_delta_by_quadrature(multiplier: float, epsilon: float) -> float:
    """The same where the two terms nearly cancel: delta = phi-weighted integral, all of one sign.

    With u, v = epsilon s -+ 1/(2 s), e^epsilon e^(-v^2/2) = e^(-u^2/2), so that delta = e^(-u^2/2) / 2 times the
    difference of erfcx(x / sqrt 2) at u and v, which is the integral of g(x) = sqrt(2/pi) - x erfcx(x / sqrt 2).
    """
    middle, half = epsilon * multiplier, 0.5 / multiplier
    x = middle + half * _NODES
    far = np.maximum(x, _FAR)
    tail = np.polynomial.polynomial.polyval(1.0 / (far * far), _ASYMPTOTIC) * sqrt(2.0 / pi)
    g = np.where(x > _FAR, tail, sqrt(2.0 / pi) - x * erfcx(np.minimum(x, _FAR) / sqrt(2.0)))
    u = middle - half
    return -0.5 * u * u + log(0.5 * half * float(_WEIGHTS @ g))


# Above this multiplier the two terms of delta agree to a tenth and more.
_LARGE = 10.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
# g(x) = sqrt(2/pi) (x^-2 - 3 x^-4 + 15 x^-6 - ...) beyond this x, to rounding.
_FAR = 30.0
_ASYMPTOTIC = (0.0, 1.0, -3.0, 15.0, -105.0, 945.0, -10395.0, 135135.0)
