"""Balls-in-bins: each unit in one random bin, the same every epoch, under correlated noise.

The pair is P = mean over bins of Normal(m_i, s^2 I) against Q = Normal(0, s^2 I), in both directions. The loss
depends on the products of a sample with the m_i alone, so everything happens in as many dimensions as bins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log

import numpy as np
from scipy.optimize import brentq

from bluegrad.accounting import _moments, _plan, gaussian
from bluegrad.accounting._bins import Bins, gram
from bluegrad.accounting._bound import Bound
from bluegrad.accounting._excess import excess_add, excess_remove
from bluegrad.accounting._plan import NOTHING, Budget, Shape
from bluegrad.accounting._weights import ROUNDING, draw_add, draw_remove, upper_confidence
from bluegrad.participation import BallsInBins
from bluegrad.strategy import Strategy

METHODS = ("monte_carlo", "renyi")
# Most bounds that one answer may look at; each gets its share of the failure probability.
CHECKS = 8
# Range, in units of the target delta, in which a calibrated bound is accepted. Below 1, so that an epsilon found for
# the same mechanism, which stops at a bound within CLOSE of its target, comes out no larger than was asked for.
ACCEPTED = (0.975, 0.99)
CLOSE = 0.998
# A delta below this needs no samples: the deterministic bound is as good as any, and weights would underflow.
_NEGLIGIBLE = 1e-30
# Samples of one bound that is wanted soon: some percent in epsilon above the one from all samples.
QUICK = 60_000
# Squared norm of a bin over the noise's variance beyond which single precision would lose digits (epsilon > 100).
_LARGEST = 300.0
LAW = "balls-in-bins"


@dataclass(frozen=True, eq=False)
class BallsInBinsGaussian:
    """Privacy curve of balls-in-bins.

    With probability at least 1 - failure, over the Monte Carlo samples of one call, the number that `delta` or
    `epsilon` returns is an upper bound on the truth. The samples are a fixed function (SHA-256, then SFC64) of the
    bins, the noise and epsilon, so equal questions get equal answers and different questions independent samples:
    asking N questions fails with probability N * failure at most, provided the mechanism wasn't searched for among
    many by its answers. "renyi" involves no chance.

    Args:
        bins: the Gram matrix in units of the squared sensitivity.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        method: "monte_carlo", "renyi" (deterministic, looser), or "auto": the smaller of both.
        failure: failure probability of a Monte Carlo bound.
        seed: another stream of samples.
        samples: of one Monte Carlo bound; by default some seconds' worth.
    """

    bins: Bins
    noise_multiplier: float
    method: str = "auto"
    failure: float = 1e-6
    seed: int = 0
    samples: int | None = None

    @property
    def _samples(self) -> int:
        return self.samples or default_samples(self.bins.count)

    def delta(self, epsilon: float) -> Bound:
        """Upper bound on delta at this epsilon: the very one that `calibrate` and `epsilon` look at."""
        if self.bins.count == 1:
            return Bound(self._plain.delta(epsilon), law=LAW)
        deterministic = _moments.delta(self.bins, self._scale, epsilon)
        if self.method == "renyi" or _too_quiet(self.bins, self._scale):
            return Bound(deterministic, law=LAW, method="renyi")
        value, estimate = check(self.bins, self._scale, epsilon, self.failure / CHECKS, self._samples, self.seed)
        if self.method == "auto" and deterministic <= value:
            return Bound(deterministic, law=LAW, method="renyi")
        return Bound(
            min(1.0, value), law=LAW, method="monte_carlo", failure_probability=self.failure, estimate=estimate
        )

    def epsilon(self, delta: float) -> Bound:
        """Upper bound on epsilon at this delta."""
        if self.bins.count == 1:
            return Bound(self._plain.epsilon(delta), law=LAW)
        deterministic = self._deterministic_epsilon(delta)
        if self.method == "renyi" or deterministic == 0.0 or _too_quiet(self.bins, self._scale):
            return Bound(deterministic, law=LAW, method="renyi")
        found = self._search(delta, deterministic)
        if found is None or (self.method == "auto" and deterministic <= found):
            return Bound(deterministic, law=LAW, method="renyi")
        return found

    @property
    def _plain(self) -> gaussian.Gaussian:
        return gaussian.Gaussian(self.noise_multiplier / self.bins.largest**0.5)

    @property
    def _scale(self) -> float:
        return 1.0 / self.noise_multiplier

    def _deterministic_epsilon(self, delta: float) -> float:
        high = self._plain.epsilon(delta)
        low, meets = 0.0, lambda e: _moments.delta(self.bins, self._scale, e) <= delta
        if meets(1e-9):
            return 0.0
        while high - low > 1e-6 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if meets(middle) else (middle, high)
        return high

    def _search(self, delta: float, high: float) -> Bound | None:
        """Smallest epsilon, to four digits, whose bound meets delta; None if none below `high` is found.

        The number of three digits just below is tried last, so that a mechanism calibrated for such an epsilon isn't
        given a larger one for the noise of the bounds.
        """
        pilot = Pilot(self.bins, budget(self.bins, self.failure, self._samples), self.seed)
        start, slope = pilot.solve(lambda e: (self._scale, e), delta, 1e-4 * high, high)
        epsilon, best = _rounded(start), None
        seen: set[float] = set()
        for _ in range(CHECKS - 1):
            if epsilon >= high or epsilon in seen or (best is not None and epsilon >= best):
                break
            seen.add(epsilon)
            reached = self.delta(epsilon)
            step = log(max(reached, 1e-300) / delta) / -slope  # to where the bound meets delta
            if reached <= delta:
                best = Bound(epsilon, law=LAW, method=reached.method, failure_probability=self.failure)
                if reached >= CLOSE * delta:
                    break
                epsilon = min(_rounded(epsilon * exp(step)), _rounded(epsilon, below=True))
            elif best is not None:
                break
            else:
                epsilon = max(_rounded(epsilon * exp(step)), _rounded(1.0005 * epsilon))
        if best is not None:
            short = float(f"{best:.3g}")
            if 0.995 * best < short < best and short not in seen and self.delta(short) <= delta:
                best = Bound(short, law=LAW, method=best.method, failure_probability=self.failure)
        return best


def normalized(strategy: Strategy, participation: BallsInBins, sensitivity: float) -> Bins:
    """The bins of a strategy in units of its sensitivity, so that the noise multiplier is the noise's deviation."""
    return Bins(gram(strategy, participation) / sensitivity**2)


def calibrate(
    bins: Bins, epsilon: float, delta: float, method: str, failure: float, seed: int = 0, samples: int | None = None
) -> float:
    """Noise multiplier whose bound at epsilon meets delta, within some percent in delta of the smallest such.

    The bound that decides is computed at the returned multiplier from samples that the search hasn't seen; all
    bounds that are looked at together fail with probability `failure` at most.
    """
    high = gaussian.calibrate(epsilon, delta) * bins.largest**0.5
    if bins.count == 1:
        return high
    deterministic = _bisect(lambda s: _moments.delta(bins, 1.0 / s, epsilon) <= delta, 0.01 * high, high)
    if method == "renyi":
        return deterministic
    samples = samples or default_samples(bins.count)
    pilot = Pilot(bins, budget(bins, failure, samples), seed)
    multiplier, slope = pilot.solve(lambda s: (1.0 / s, epsilon), 0.5 * sum(ACCEPTED) * delta, 0.01 * high, high)
    best = inf
    for turn in range(CHECKS):
        reached, _estimate = check(bins, 1.0 / multiplier, epsilon, failure / CHECKS, samples, seed)
        if reached <= ACCEPTED[1] * delta:
            best = min(best, multiplier)
            if reached >= (ACCEPTED[0] if turn == 0 else 0.93) * delta:
                break
        elif best < inf:
            break
        multiplier *= (reached / (0.5 * sum(ACCEPTED) * delta)) ** (-1.0 / slope)
        if not multiplier < min(best, high):
            break
    return min(best, deterministic) if method == "auto" or best == inf else best


def estimate(bins: Bins, epsilon: float, delta: float) -> float:
    """About what `calibrate` finds, to a few percent, from few samples: to rank strategies."""
    high = gaussian.calibrate(epsilon, delta) * bins.largest**0.5
    if bins.count == 1:
        return high
    few = max(1000, min(4000, 400_000 // bins.count))
    pilot = Pilot(bins, Budget(few, few, 1.0), 0)
    return pilot.near(
        epsilon, delta, _bisect(lambda s: _moments.delta(bins, 1.0 / s, epsilon) <= delta, 0.01 * high, high)
    )


def default_samples(bins: int) -> int:
    """Samples of one bound: some seconds' worth, half a minute's for a thousand bins."""
    return int(1.2e6 * min(1.0, (100.0 / bins) ** 0.1))


def budget(bins: Bins, failure: float, samples: int) -> Budget:
    """Budget of one of the bounds that an answer looks at; half the failure probability for each direction."""
    pilot = min(max(4000, min(12000, int(4e6 / bins.count))), max(2000, samples // 10))
    return Budget(samples, min(samples, pilot), log(2.0 * CHECKS / failure))


@lru_cache(maxsize=64)
def check(bins: Bins, scale: float, epsilon: float, failure: float, samples: int, seed: int) -> tuple[float, float]:
    """Upper confidence bound on delta at epsilon, and the plain estimate, in the worse direction.

    All that shapes the bound (proposal, ceiling, bet) comes from pilot samples; the bound's own are drawn after.
    """
    deterministic = _moments.delta(bins, scale, epsilon)
    if _too_quiet(bins, scale) or deterministic < _NEGLIGIBLE:
        return deterministic, 0.0
    spent = Budget(samples, budget(bins, failure, samples).pilot, log(2.0 / failure))
    plan = _plan.choose_remove(bins, scale, epsilon, _plan.SHAPES, spent, _seed(bins, scale, epsilon, seed, "pilot"))
    weights = draw_remove(bins, scale, epsilon, plan.proposal, plan.count, _seed(bins, scale, epsilon, seed, "remove"))
    estimate = weights.mean
    remove = upper_confidence(weights.truncated(plan.ceiling), plan.bet, 0.5 * failure) * (1.0 + ROUNDING)
    remove += excess_remove(bins, scale, epsilon, plan.proposal, plan.ceiling)
    add = _add_without_sampling(bins, scale, epsilon)
    if add > 0.5 * remove:
        plan = _plan.choose_add(bins, scale, epsilon, remove, spent, _seed(bins, scale, epsilon, seed, "pilot add"))
        weights = draw_add(bins, scale, epsilon, plan.proposal, plan.count, _seed(bins, scale, epsilon, seed, "add"))
        estimate = max(estimate, weights.mean)
        sampled = upper_confidence(weights.truncated(plan.ceiling), plan.bet, 0.5 * failure) * (1.0 + ROUNDING)
        add = min(add, sampled + excess_add(bins, scale, epsilon, plan.proposal, plan.ceiling))
    return max(remove, add), estimate


@dataclass(frozen=True, eq=False)
class Pilot:
    """A cheap estimate of where a bound is going to meet delta, by the same random numbers everywhere."""

    bins: Bins
    budget: Budget
    seed: int

    def solve(
        self, path: Callable[[float], tuple[float, float]], delta: float, low: float, high: float
    ) -> tuple[float, float]:
        """The x in (low, high) whose expected bound is delta, and d log delta / d log x there.

        Args:
            path: from x to (scale, epsilon); delta falls along it.
            delta: the target.
            low: smallest x to look at.
            high: delta there is below the target.
        """
        seed = _seed(self.bins, 1.0, 1.0, self.seed, "search")
        shapes, target = (_plan.SHAPES[4],), log(delta)

        def estimate(log_x: float) -> float:
            scale, epsilon = path(exp(log_x))
            return log(max(self._estimate(shapes[0], scale, epsilon, seed), 1e-300))

        right = x = log(high)
        left = right - 0.3
        while estimate(left) < target and left > log(low):
            right, left = left, left - 0.6
        if estimate(left) > target > estimate(right):
            x = float(brentq(lambda y: estimate(y) - target, left, right, xtol=3e-3))
        slope = min(-0.5, (estimate(x + 0.02) - estimate(x - 0.02)) / 0.04)
        for choice in (_plan.SHAPES, ()):
            scale, epsilon = path(exp(x))
            plan = _plan.choose_remove(self.bins, scale, epsilon, choice or shapes, self.budget, seed)
            shapes = (plan.shape,)
            aim = target - max(0.0, min(1.0, log(plan.expected / plan.estimate)))
            for _ in range(2):
                x = min(x - (estimate(x) - aim) / slope, log(high))
        return exp(x), slope

    def near(self, epsilon: float, delta: float, high: float) -> float:
        """The multiplier at which the estimate is delta, to about 1 %; `high` is above it."""
        seed, target = _seed(self.bins, 1.0, 1.0, self.seed, "near"), log(delta)

        def excess(log_multiplier: float) -> float:
            value = self._estimate(_plan.SHAPES[4], exp(-log_multiplier), epsilon, seed)
            return log(max(value, 1e-300)) - target

        right = log(high)
        left = right - 0.2
        while excess(left) < 0.0 and left > right - 5.0:
            right, left = left, left - 0.2
        if excess(right) >= 0.0:
            return exp(right)
        return exp(float(brentq(excess, left, right, xtol=3e-3)))

    def _estimate(self, shape: Shape, scale: float, epsilon: float, seed: list[int]) -> float:
        proposal = shape.at(self.bins, scale, epsilon)
        value = draw_remove(self.bins, scale, epsilon, proposal, self.budget.pilot, seed).mean
        if _add_without_sampling(self.bins, scale, epsilon, rough=True) > 0.5 * value:
            other = _plan.lowered(self.bins, scale, epsilon)
            value = max(value, draw_add(self.bins, scale, epsilon, other, self.budget.pilot, seed).mean)
        return value


def _add_without_sampling(bins: Bins, scale: float, epsilon: float, *, rough: bool = False) -> float:
    simple = _moments.add(bins, scale, epsilon)
    return simple if simple < 1e-30 else min(simple, excess_add(bins, scale, epsilon, NOTHING, 0.0, rough=rough))


def _too_quiet(bins: Bins, scale: float) -> bool:
    """Whether there is so little noise that only the deterministic bound is computed."""
    return scale * scale * bins.largest > _LARGEST


def _bisect(meets: Callable[[float], bool], low: float, high: float) -> float:
    """Smallest x in (low, high] that meets, to 1e-6; `high` does."""
    while high > (1.0 + 1e-6) * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _rounded(x: float, below: bool = False) -> float:
    """x rounded up to four significant digits; or the number of four digits just below it."""
    unit = 10.0 ** (np.floor(np.log10(x)) - 3)
    steps = np.ceil(x / unit - 1e-9) - (1 if below else 0)
    return float(f"{steps * unit:.4g}")


def _seed(bins: Bins, scale: float, epsilon: float, seed: int, purpose: str) -> list[int]:
    """Seed of the samples for one purpose: a digest of the question, so that no two share samples."""
    text = f"{scale.hex()} {float(epsilon).hex()} {seed} {purpose}".encode()
    return np.frombuffer(hashlib.sha256(bins.digest + text).digest(), dtype=np.uint32).tolist()
