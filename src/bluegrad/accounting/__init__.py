"""epsilon, delta and calibrate: one privacy law for every participation, refused by name where none is proved."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import singledispatch
from typing import Any, Protocol

from bluegrad import _checks, score
from bluegrad._checks import Unsupported
from bluegrad.accounting import gaussian
from bluegrad.mechanism import Mechanism
from bluegrad.participation import Participation, Poisson, Separated
from bluegrad.strategy import Strategy

__all__ = ["calibrate", "delta", "epsilon"]


class Law(Protocol):
    """A privacy curve, each value an upper bound."""

    def delta(self, epsilon: float) -> float:
        """Bound on delta at epsilon."""

    def epsilon(self, delta: float) -> float:
        """Bound on epsilon at delta."""


# A participation's law: its curve at a noise multiplier, and the multiplier that meets (epsilon, delta).
Pair = tuple[Callable[[float], Law], Callable[[float, float], float]]


@singledispatch
def _law(participation: Participation) -> Pair:
    raise Unsupported(f"no privacy law for {participation!r}")


@_law.register
def _(participation: Separated) -> Pair:
    return gaussian.Gaussian, gaussian.calibrate


@_law.register
def _(participation: Poisson) -> Pair:
    # loaded on use: dp_accounting takes a second to import, and only this law needs it
    poisson: Any = importlib.import_module("bluegrad.accounting.poisson")
    rate, steps = float(participation.rate), participation.steps
    return (
        lambda multiplier: poisson.PoissonGaussian(multiplier, rate, steps),
        lambda epsilon, delta: poisson.calibrate(epsilon, delta, rate, steps),
    )


def calibrate(strategy: Strategy, participation: Participation, *, epsilon: float, delta: float) -> Mechanism:
    """The mechanism of least noise that is (epsilon, delta)-DP; never less private than asked.

    Neighbours differ by zeroing out one unit (add-or-remove under Poisson). Without amplification it is the
    exact Gaussian mechanism of sensitivity sens(C); under Poisson sampling dp_accounting's privacy loss
    distributions, rounded towards privacy.

    Args:
        strategy: C, n steps.
        participation: which steps a unit may join, n steps.
        epsilon: privacy budget, above 0.
        delta: failure probability, in (0, 1).

    Returns:
        The mechanism; its `noise_multiplier` is in units of clip norm times sensitivity.

    Raises:
        ValueError: epsilon or delta out of range, different numbers of steps, or a target no noise meets.
        Unsupported: no sensitivity rule or privacy law for the pair.

    Example:
        >>> from bluegrad import FixedEpochs, lambda_cgd
        >>> round(calibrate(lambda_cgd(100, 0.9), FixedEpochs(100, 5), epsilon=1, delta=1e-5).noise_multiplier, 4)
        3.7306

    Guarantees: holds for adaptively chosen gradients (arXiv 2202.08312, theorem 2.1).
    Source: Balle and Wang 2018 (arXiv 1805.06530), algorithm 1.
    """
    eps, dlt = _checks.epsilon(epsilon), _checks.delta(delta)
    score.certify(strategy, participation)  # refuse an unknown pair before any search
    _, solve = _law(participation)
    return Mechanism(strategy, participation, solve(eps, dlt))


def epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """Smallest epsilon that is certified at delta: an upper bound, tight to the law's accuracy.

    Args:
        mechanism: strategy, participation and noise multiplier.
        delta: failure probability, in (0, 1).

    Returns:
        epsilon >= 0.

    Raises:
        ValueError: delta out of range.
        Unsupported: no privacy law for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> round(epsilon(Mechanism(identity(10), FixedEpochs(10, 2), 3.7306325589), delta=1e-5), 4)
        1.0

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8.
    """
    curve, _ = _law(mechanism.participation)
    return curve(float(mechanism.noise_multiplier)).epsilon(_checks.delta(delta))


def delta(mechanism: Mechanism, *, epsilon: float) -> float:
    """Smallest delta that is certified at epsilon: an upper bound, tight to the law's accuracy.

    Args:
        mechanism: strategy, participation and noise multiplier.
        epsilon: privacy budget, above 0.

    Returns:
        delta in [0, 1].

    Raises:
        ValueError: epsilon out of range.
        Unsupported: no privacy law for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> round(delta(Mechanism(identity(10), FixedEpochs(10, 2), 1.0), epsilon=1.0), 6)
        0.126937

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8.
    """
    curve, _ = _law(mechanism.participation)
    return curve(float(mechanism.noise_multiplier)).delta(_checks.epsilon(epsilon))
