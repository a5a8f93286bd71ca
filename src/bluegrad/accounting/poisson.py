"""Poisson-sampled DP-SGD: dp_accounting's privacy loss distributions, pessimistic estimates.

Truncated batches. Let M cut batches of more than B units to a uniformly random subset, M' not, and let both draw the
same units and noise. They release the same unless a batch overflows, whose probability b depends on the draws alone,
not on what was released; so the laws of M and M' on one data set differ by b at most in any event S. Hence on
neighbours D and E, each with at most N units,

    Pr[M(D) in S] <= Pr[M'(D) in S] + b <= e^epsilon Pr[M'(E) in S] + delta' + b
                  <= e^epsilon Pr[M(E) in S] + delta' + (1 + e^epsilon) b,

b <= 1 - (1 - Pr[Binomial(N, rate) > B])^rounds <= rounds Pr[Binomial(N, rate) > B]. Under cyclic sampling only the
rounds of the group count whose unit differs, since all others are cut alike on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log

from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.stats import binom

from bluegrad.accounting import gaussian

# Relative accuracy of a calibrated noise multiplier (towards privacy).
TOLERANCE = 1e-5
# Grid of the losses: dp_accounting's default; it rounds every loss up to the grid.
_INTERVAL = 1e-4
# Most steps towards the epsilon at which the price of truncation and the rest make up delta.
_TURNS = 60


@dataclass(frozen=True)
class PoissonGaussian:
    """`steps` compositions of the Gaussian mechanism with each unit sampled at `rate`, add-or-remove.

    `overflow`: probability that some batch is cut to a largest size.
    """

    noise_multiplier: float
    rate: float
    steps: int
    overflow: float = 0.0

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at this epsilon."""
        price = self.overflow * (1.0 + exp(min(epsilon, 700.0)))
        return min(1.0, float(self._composed.get_delta_for_epsilon(epsilon)) + price)

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at this delta; infinite where overflowing batches alone cost as much."""
        if self.overflow == 0.0:
            return float(self._composed.get_epsilon_for_delta(delta))
        epsilon = 0.0
        for _ in range(_TURNS):
            left = delta - self.overflow * (1.0 + exp(min(epsilon, 700.0)))
            if left <= 0.0:
                break
            reached = float(self._composed.get_epsilon_for_delta(left))
            if reached <= epsilon:
                return epsilon
            epsilon = reached * (1.0 + 1e-9) + 1e-12
        return inf

    @property
    def _composed(self) -> pld.PrivacyLossDistribution:
        return _composed(self.noise_multiplier, self.rate, self.steps)


def overflow(largest: int | None, units: int | None, rate: float, rounds: int) -> float:
    """Upper bound on the probability that any of `rounds` batches from `units` units exceeds `largest`."""
    if largest is None or units is None:
        return 0.0
    # the tail to a relative accuracy far better than this margin
    return min(1.0, rounds * float(binom.sf(largest, units, rate)) * (1.0 + 1e-6))


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
def _composed(noise_multiplier: float, rate: float, steps: int) -> pld.PrivacyLossDistribution:
    # never step by step: every composition cuts its tails towards privacy, and the bound would grow looser
    return _one_step(noise_multiplier, rate).self_compose(steps)


@lru_cache(maxsize=64)
def calibrate(epsilon: float, delta: float, rate: float, steps: int, overflow: float = 0.0) -> float:
    """Noise multiplier whose epsilon bound meets the target, within TOLERANCE of the smallest such.

    Raises:
        ValueError: no noise multiplier meets the target within the resolution of the distributions.
    """

    price = overflow * (1.0 + exp(min(epsilon, 700.0)))
    if price >= delta:
        raise ValueError(
            f"delta={delta!r}: batches above the largest size cost {price:.3g} of it; raise `largest`, whose price "
            "falls fast from a few standard deviations above the expected size"
        )

    def excess(log_multiplier: float) -> float:
        reached = PoissonGaussian(exp(log_multiplier), rate, steps, overflow).epsilon(delta)
        return inf if reached == inf else log(max(reached, 1e-12) / epsilon)

    # without amplification, `steps` Gaussian releases are one with multiplier / sqrt(steps): never less private
    high = log(gaussian.calibrate(epsilon, delta - price)) + 0.5 * log(steps) + TOLERANCE
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
