"""epsilon, delta and calibrate: one privacy law for every participation, refused by name where none is proved."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol

from bluegrad import _checks, score
from bluegrad._checks import Unsupported
from bluegrad.accounting import balls_in_bins, gaussian, random_allocation
from bluegrad.accounting._bins import Bins
from bluegrad.accounting._bound import Bound
from bluegrad.accounting._renyi import renyi, zcdp
from bluegrad.accounting.random_allocation import RandomAllocation
from bluegrad.mechanism import Mechanism
from bluegrad.participation import BallsInBins, CyclicPoisson, Participation, Poisson, Separated
from bluegrad.strategy import Strategy

__all__ = ["Bound", "calibrate", "delta", "epsilon", "renyi", "zcdp"]

# The method that every law has besides "auto", and that never takes more than seconds.
QUICK = "quick"


class Curve(Protocol):
    """A privacy curve, each value an upper bound."""

    def delta(self, epsilon: float) -> float:
        """Bound on delta at epsilon."""

    def epsilon(self, delta: float) -> float:
        """Bound on epsilon at delta."""


@dataclass(frozen=True)
class Law:
    """The privacy law of a participation.

    Args:
        name: as in ledgers.
        methods: how it can be evaluated, the default first.
        curve: privacy curve of a mechanism, by method and failure probability.
        solve: noise multiplier for (epsilon, delta), by method and failure probability.
        guess: the same in about a second, without a guarantee, where `solve` takes long.
    """

    name: str
    methods: tuple[str, ...]
    curve: Callable[[Mechanism, str, float], Curve]
    solve: Callable[[Strategy, float, float, str, float], float]
    guess: Callable[[Strategy, float, float], float] | None = None


@singledispatch
def _law(participation: Participation) -> Law:
    raise Unsupported(f"no privacy law for {participation!r}")


@_law.register
def _(participation: Separated) -> Law:
    return Law(
        "gaussian",
        ("auto", "exact", QUICK),
        lambda mechanism, method, failure: gaussian.Gaussian(float(mechanism.noise_multiplier)),
        lambda strategy, epsilon, delta, method, failure: gaussian.calibrate(epsilon, delta),
    )


@_law.register
def _(participation: Poisson) -> Law:
    return _composed("poisson", participation, participation.steps, participation.units)


@_law.register
def _(participation: CyclicPoisson) -> Law:
    units = participation.units and -(-participation.units // participation.period)
    return _composed("cyclic-poisson", participation, participation.rounds, units)


def _composed(name: str, participation: Poisson | CyclicPoisson, rounds: int, units: int | None) -> Law:
    # loaded on use: dp_accounting takes a second to import, and only these laws need it
    poisson: Any = importlib.import_module("bluegrad.accounting.poisson")
    rate = float(participation.rate)
    cut = poisson.overflow(participation.largest, units, rate, rounds)
    return Law(
        name,
        ("auto", "pld", QUICK),
        lambda mechanism, method, failure: poisson.PoissonGaussian(
            float(mechanism.noise_multiplier), rate, rounds, cut
        ),
        lambda strategy, epsilon, delta, method, failure: poisson.calibrate(epsilon, delta, rate, rounds, cut),
    )


@_law.register
def _(participation: BallsInBins) -> Law:
    def curve(mechanism: Mechanism, method: str, failure: float) -> Curve:
        pair = _allocation_or_bins(mechanism.strategy, participation, mechanism.sensitivity, method)
        multiplier = float(mechanism.noise_multiplier)
        if isinstance(pair, RandomAllocation):
            return random_allocation.RandomAllocationGaussian(pair, multiplier)
        if method == QUICK:
            return balls_in_bins.BallsInBinsGaussian(pair, multiplier, "auto", failure, samples=balls_in_bins.QUICK)
        return balls_in_bins.BallsInBinsGaussian(pair, multiplier, method, failure)

    def solve(strategy: Strategy, epsilon: float, delta: float, method: str, failure: float) -> float:
        pair = _allocation_or_bins(strategy, participation, score.sensitivity(strategy, participation), method)
        if isinstance(pair, RandomAllocation):
            return pair.calibrate(epsilon, delta)
        if method == QUICK:
            return balls_in_bins.calibrate(pair, epsilon, delta, "auto", failure, samples=balls_in_bins.QUICK)
        return balls_in_bins.calibrate(pair, epsilon, delta, method, failure)

    def guess(strategy: Strategy, epsilon: float, delta: float) -> float:
        pair = _allocation_or_bins(strategy, participation, score.sensitivity(strategy, participation), "auto")
        if isinstance(pair, RandomAllocation):
            return pair.calibrate(epsilon, delta)
        return balls_in_bins.estimate(pair, epsilon, delta)

    methods = ("auto", *balls_in_bins.METHODS, random_allocation.METHOD, QUICK)
    return Law("balls-in-bins", methods, curve, solve, guess)


def _allocation_or_bins(
    strategy: Strategy, participation: BallsInBins, sensitivity: float, method: str
) -> RandomAllocation | Bins:
    """What the method computes with: independent bins if it knows what to do with them, else the Gram matrix."""
    if method in balls_in_bins.METHODS:
        return balls_in_bins.normalized(strategy, participation, sensitivity)
    found: RandomAllocation | Bins | None = random_allocation.of_strategy(strategy, participation, sensitivity)
    if found is not None:
        return found
    bins = balls_in_bins.normalized(strategy, participation, sensitivity)
    found = random_allocation.of_bins(bins)
    if found is None and method == random_allocation.METHOD:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: its bins are correlated or unequal, and {method!r} needs "
            "independent ones, as those of the identity; use method='monte_carlo' or 'renyi'"
        )
    return found or bins


def _method(law: Law, participation: Participation, method: str) -> str:
    if method not in law.methods:
        raise _checks.fail("method", method, f"isn't known for {participation!r}", f"choose one of {law.methods}")
    return method


# For laws that need no sampling, any failure probability will do.
_DECIDED = 1e-6


def _failure(value: float) -> float:
    return _checks.real(
        "failure_probability", value, low=0.0, high=0.5, low_open=True,
        fix="give the chance that a Monte Carlo bound may be wrong, such as 1e-6",
    )  # fmt: skip


def _bound(law: Law, value: float) -> Bound:
    if isinstance(value, Bound):
        return value
    return Bound(value, law=law.name, method=law.methods[1])


def calibrate(
    strategy: Strategy,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    method: str = "auto",
    failure_probability: float = 1e-6,
) -> Mechanism:
    """The mechanism of least noise that is (epsilon, delta)-DP; never less private than asked.

    Neighbours differ by zeroing out one unit (add-or-remove under Poisson). Without amplification it is the
    exact Gaussian mechanism of sensitivity sens(C); under Poisson and cyclic Poisson sampling dp_accounting's privacy
    loss distributions, rounded towards privacy; under balls-in-bins one of these for the identity, and else an upper
    confidence bound by importance sampling, or a Renyi bound.

    Args:
        strategy: C, n steps.
        participation: which steps a unit may join, n steps.
        epsilon: privacy budget, above 0.
        delta: failure probability of the guarantee, in (0, 1).
        method: "auto", or one that the participation's law has: under BallsInBins "monte_carlo", "renyi", or for the
            identity "pld". "quick" is "auto" with few samples where it samples: as valid, a little looser, for
            progress displays.
        failure_probability: chance, over the samples of a Monte Carlo method, that the mechanism isn't as private as
            asked. The bound that decides is computed at the returned multiplier, from samples of its own.

    Returns:
        The mechanism; its `noise_multiplier` is in units of clip norm times sensitivity.

    Raises:
        ValueError: epsilon or delta out of range, different numbers of steps, an unknown method, or a target no noise
            meets.
        Unsupported: no sensitivity rule or privacy law for the pair.

    Example:
        >>> from bluegrad import FixedEpochs, lambda_cgd
        >>> round(calibrate(lambda_cgd(100, 0.9), FixedEpochs(100, 5), epsilon=1, delta=1e-5).noise_multiplier, 4)
        3.7306

    Guarantees: holds for adaptively chosen gradients (arXiv 2202.08312, theorem 2.1; arXiv 2410.06266, theorem 3.2).
    Source: Balle and Wang 2018 (arXiv 1805.06530), algorithm 1.
    """
    eps, dlt, failure = _checks.epsilon(epsilon), _checks.delta(delta), _failure(failure_probability)
    score.certify(strategy, participation)  # refuse an unknown pair before any search
    law = _law(participation)
    return Mechanism(
        strategy, participation, law.solve(strategy, eps, dlt, _method(law, participation, method), failure)
    )


def estimate_multiplier(strategy: Strategy, participation: Participation, *, epsilon: float, delta: float) -> float:
    """About the noise multiplier that `calibrate` finds, in about a second: to rank strategies, never to train.

    Args:
        strategy: C, n steps.
        participation: n steps.
        epsilon: privacy budget, above 0.
        delta: failure probability, in (0, 1).

    Returns:
        The multiplier; where `calibrate` needs no sampling, its own.

    Raises:
        ValueError: as `calibrate`.
        Unsupported: as `calibrate`.
    """
    eps, dlt = _checks.epsilon(epsilon), _checks.delta(delta)
    score.certify(strategy, participation)
    law = _law(participation)
    if law.guess is not None:
        return law.guess(strategy, eps, dlt)
    return law.solve(strategy, eps, dlt, "auto", _DECIDED)


def epsilon(mechanism: Mechanism, *, delta: float, method: str = "auto", failure_probability: float = 1e-6) -> Bound:
    """Smallest epsilon that is certified at delta: an upper bound, tight to the law's accuracy.

    Args:
        mechanism: strategy, participation and noise multiplier.
        delta: failure probability of the guarantee, in (0, 1).
        method: as in `calibrate`.
        failure_probability: as in `calibrate`.

    Returns:
        epsilon >= 0, a float that knows law, method and failure probability (`Bound`).

    Raises:
        ValueError: delta out of range, or an unknown method.
        Unsupported: no privacy law for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> round(epsilon(Mechanism(identity(10), FixedEpochs(10, 2), 3.7306325589), delta=1e-5), 4)
        1.0

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8.
    """
    dlt, failure, law = _checks.delta(delta), _failure(failure_probability), _law(mechanism.participation)
    curve = law.curve(mechanism, _method(law, mechanism.participation, method), failure)
    return _bound(law, curve.epsilon(dlt))


def delta(mechanism: Mechanism, *, epsilon: float, method: str = "auto", failure_probability: float = 1e-6) -> Bound:
    """Smallest delta that is certified at epsilon: an upper bound, tight to the law's accuracy.

    Args:
        mechanism: strategy, participation and noise multiplier.
        epsilon: privacy budget, above 0.
        method: as in `calibrate`.
        failure_probability: as in `calibrate`.

    Returns:
        delta in [0, 1], a float that knows law, method and failure probability (`Bound`).

    Raises:
        ValueError: epsilon out of range, or an unknown method.
        Unsupported: no privacy law for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> round(delta(Mechanism(identity(10), FixedEpochs(10, 2), 1.0), epsilon=1.0), 6)
        0.126937

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8.
    """
    eps, failure, law = _checks.epsilon(epsilon), _failure(failure_probability), _law(mechanism.participation)
    curve = law.curve(mechanism, _method(law, mechanism.participation, method), failure)
    return _bound(law, curve.delta(eps))
