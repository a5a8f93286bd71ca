"""Poisson-sampled DP-SGD: dp_accounting's privacy loss distributions, pessimistic estimates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log

from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq

from bluegrad.accounting import gaussian

# Relative accuracy of a calibrated noise multiplier (towards privacy).
TOLERANCE = 1e-5
# Grid of the losses: dp_accounting's default; it rounds every loss up to the grid.
_INTERVAL = 1e-4


@dataclass(frozen=True)
class PoissonGaussian:
    """`steps` compositions of the Gaussian mechanism with each unit sampled at `rate`, add-or-remove."""

    noise_multiplier: float
    rate: float
    steps: int

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at this epsilon."""
        return min(1.0, float(_composed(self).get_delta_for_epsilon(epsilon)))

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at this delta."""
        return float(_composed(self).get_epsilon_for_delta(delta))


@lru_cache(maxsize=2)
def _one_step(noise_multiplier: float, rate: float) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(
        noise_multiplier,
        pessimistic_estimate=True,
        value_discretization_interval=_INTERVAL,
        sampling_prob=rate,
        use_connect_dots=True,
    )


@lru_cache(maxsize=8)
def _composed(law: PoissonGaussian) -> pld.PrivacyLossDistribution:
    # never step by step: every composition cuts its tails towards privacy, and the bound would grow looser
    return _one_step(law.noise_multiplier, law.rate).self_compose(law.steps)


@lru_cache(maxsize=64)
def calibrate(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Noise multiplier whose epsilon bound meets the target, within TOLERANCE of the smallest such.

    Raises:
        ValueError: no noise multiplier meets the target within the resolution of the distributions.
    """

    def excess(log_multiplier: float) -> float:
        reached = PoissonGaussian(exp(log_multiplier), rate, steps).epsilon(delta)
        return inf if reached == inf else log(max(reached, 1e-12) / epsilon)

    # without amplification, `steps` Gaussian releases are one with multiplier / sqrt(steps): never less private
    high = log(gaussian.calibrate(epsilon, delta)) + 0.5 * log(steps) + TOLERANCE
    if excess(high) > 0.0:
        high += 0.1
        if excess(high) > 0.0:
            raise ValueError(
                f"epsilon={epsilon!r}, delta={delta!r}: finer than the {_INTERVAL:g} grid of the privacy loss "
                "resolves; ask for a larger epsilon"
            )
    low = high - 0.5
    while excess(low) <= 0.0:
        high, low = low, low - 0.5
    while excess(low) == inf:  # Brent needs finite ends
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    root = float(brentq(excess, low, high, xtol=0.5 * TOLERANCE))
    while excess(root) > 0.0:
        root += 0.5 * TOLERANCE
    return exp(root)
