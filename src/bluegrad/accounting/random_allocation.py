"""Random allocation: balls-in-bins where the bins have nothing in common, as those of plain DP-SGD."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log

import numpy as np
from scipy.optimize import brentq

from bluegrad.accounting import gaussian
from bluegrad.accounting._bins import Array, Bins
from bluegrad.accounting._bound import Bound
from bluegrad.accounting._mixtures import GridLaw, sum_of_log_normals
from bluegrad.participation import BallsInBins
from bluegrad.strategy import Strategy

LAW = "balls-in-bins"
METHOD = "pld"
# Relative accuracy of a calibrated multiplier and of an epsilon, both towards privacy.
TOLERANCE = 1e-5
# Widths of the grid in standard deviations of log R: for what is returned (0.1 % in epsilon), and to search with.
_FINE, _COARSE = 0.04, 0.15
# Relative allowance for the rounding of sums of positive terms.
_MARGIN = 1e-9
# Squared norm over the noise's variance beyond which no amplification is claimed (epsilon > 100).
_LARGEST = 300.0


@dataclass(frozen=True)
class RandomAllocation:
    """Bins whose Gram matrix is `square` times the identity, in units of the squared sensitivity.

    With S = square / noise_multiplier^2 the likelihood ratio under Q is the mean R of independent
    e^(u_i - S/2), u_i ~ Normal(0, S), one for each bin, and delta(P || Q) = E (R - e^epsilon)+,
    delta(Q || P) = E (1 - e^epsilon R)+: expectations of convex functions of R, bounded by a law on a grid.

    Source: arXiv 2502.08202, 2602.17284 (the problem); arXiv 2207.04380 (rounding of this kind).
    """

    count: int
    square: float

    def delta(self, noise_multiplier: float, epsilon: float, width: float = _FINE) -> float:
        """Upper bound on delta at epsilon, the tighter the smaller the width of the grid."""
        square = self.square / noise_multiplier**2
        known = gaussian.Gaussian(square**-0.5).delta(epsilon)  # the bin told: never more private than kept secret
        if self.count == 1 or square > _LARGEST:
            return known
        law, ratio = _ratio(self.count, square, width)
        level = exp(min(epsilon, 700.0))
        remove = float(np.dot(law.masses, np.maximum(ratio - level, 0.0))) + law.lost / self.count
        add = float(np.dot(law.masses, np.maximum(1.0 - level * ratio, 0.0))) + law.zero
        return min(known, max(remove, add) * (1.0 + _MARGIN))

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """Upper bound on epsilon at delta."""
        high = gaussian.Gaussian(noise_multiplier / self.square**0.5).epsilon(delta)
        if self.count == 1:
            return high
        low = 0.0
        if self.delta(noise_multiplier, 1e-12) <= delta:
            return 0.0
        while high - low > 0.01 * TOLERANCE * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.delta(noise_multiplier, middle) <= delta else (middle, high)
        return high

    def calibrate(self, epsilon: float, delta: float) -> float:
        """Noise multiplier whose bound meets (epsilon, delta), within TOLERANCE of the smallest such."""
        most = gaussian.calibrate(epsilon, delta) * self.square**0.5
        if self.count == 1:
            return most
        asked = epsilon * (1.0 - 0.02 * TOLERANCE)  # so that `epsilon` of what comes back isn't above the target

        def excess(log_multiplier: float, width: float = _FINE) -> float:
            return log(max(self.delta(exp(log_multiplier), asked, width), 1e-300) / delta)

        high = log(most)
        low = high - 0.3
        while excess(low, _COARSE) <= 0.0:
            high, low = low, low - 0.3
        if excess(high, _COARSE) > 0.0:
            return most
        root = float(brentq(lambda x: excess(x, _COARSE), low, high, xtol=10.0 * TOLERANCE))
        slope = max(0.5, (excess(root - 0.01, _COARSE) - excess(root + 0.01, _COARSE)) / 0.02)
        best = log(most)
        for _ in range(8):
            reached = excess(root)
            if reached <= 0.0:
                best = min(best, root)
                if reached >= -TOLERANCE * slope:
                    break
            root += reached / slope + 0.5 * TOLERANCE
        return min(most, exp(best))


@dataclass(frozen=True)
class RandomAllocationGaussian:
    """Privacy curve of an allocation at a noise multiplier."""

    allocation: RandomAllocation
    noise_multiplier: float

    def delta(self, epsilon: float) -> Bound:
        """Upper bound on delta at this epsilon."""
        return self._bound(self.allocation.delta(self.noise_multiplier, epsilon))

    def epsilon(self, delta: float) -> Bound:
        """Upper bound on epsilon at this delta."""
        return self._bound(self.allocation.epsilon(self.noise_multiplier, delta))

    def _bound(self, value: float) -> Bound:
        return Bound(value, law=LAW, method="exact" if self.allocation.count == 1 else METHOD)


def of_strategy(strategy: Strategy, participation: BallsInBins, sensitivity: float) -> RandomAllocation | None:
    """The allocation of a multiple of the identity, however many bins; None for other strategies."""
    c = strategy.coefficients()
    if c is None or np.any(c[1:]) or not c[0] > 0.0:
        return None
    return RandomAllocation(participation.bins, participation.epochs * float(c[0]) ** 2 / sensitivity**2)


def of_bins(bins: Bins) -> RandomAllocation | None:
    """The allocation where the Gram matrix is a multiple of the identity, to the last bit; else None."""
    if np.count_nonzero(bins.matrix) != bins.count or bins.squares.min() != bins.squares.max() > 0.0:
        return None
    return RandomAllocation(bins.count, bins.largest)


@lru_cache(maxsize=16)
def _ratio(count: int, square: float, width: float) -> tuple[GridLaw, Array]:
    law = sum_of_log_normals(count, square, width)
    return law, law.values / count
