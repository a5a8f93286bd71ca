"""Renyi and zero-concentrated DP: whole curves where they are known, for composition with other releases."""

from __future__ import annotations

from functools import singledispatch
from math import ceil, log

import numpy as np
from scipy.special import gammaln, logsumexp

from bluegrad import _checks
from bluegrad._checks import Unsupported
from bluegrad.accounting import _moments, balls_in_bins
from bluegrad.accounting._bound import Bound
from bluegrad.mechanism import Mechanism
from bluegrad.participation import BallsInBins, CyclicPoisson, Participation, Poisson, Separated

# Largest order at which amplification is looked for; beyond there is hardly any.
_MOST = 4096


def renyi(mechanism: Mechanism, *, order: float) -> Bound:
    """Bound on the Renyi divergence of this order between neighbours, in both directions, in nats.

    a / (2 sigma^2) exactly without amplification. Under Poisson and cyclic Poisson sampling the number of rounds times
    log(sum_j binom(a, j) (1 - q)^(a-j) q^j e^(j (j-1) / (2 sigma^2))) / (a - 1), exact at integers a; orders in between
    get the next integer's. Under balls-in-bins Hölder's bound on the integer moments of the likelihood ratio, and the
    Gaussian divergence of the mean log-likelihood ratio for the other direction. Never above the unamplified one.

    Args:
        mechanism: strategy, participation and noise multiplier.
        order: a > 1.

    Returns:
        The divergence, with law and method ("exact" or "renyi").

    Raises:
        ValueError: order isn't a number above 1.
        Unsupported: no such bound is known for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> renyi(Mechanism(identity(10), FixedEpochs(10, 2), 2.0), order=8)
        1.0

    Source: arXiv 1702.07476 (definition), 1908.10530 (sampled Gaussian, theorems 4 and 5), 2601.21636 (balls-in-bins).
    """
    a = _checks.real("order", order, low=1.0, low_open=True, fix="give an order such as 2 or 16")
    value, law, exact = _divergence(mechanism.participation, mechanism, a)
    return Bound(value, law=law, method="exact" if exact else "renyi")


def zcdp(mechanism: Mechanism) -> Bound:
    """rho of zero-concentrated DP: the least with Renyi divergence at most rho a at every order a > 1.

    rho = 1 / (2 sigma^2), times the rounds of Poisson sampling. Amplification by sampling doesn't lower it: as a grows,
    the divergence over a tends to that of a unit known to take part.

    Args:
        mechanism: strategy, participation and noise multiplier.

    Returns:
        rho, with law and method.

    Raises:
        Unsupported: no such bound is known for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, Mechanism, identity
        >>> zcdp(Mechanism(identity(10), FixedEpochs(10, 2), 0.5))
        2.0

    Source: arXiv 1605.02065, definition 1.1 and proposition 1.6.
    """
    rounds, law = _rounds(mechanism.participation)
    return Bound(0.5 * rounds / float(mechanism.noise_multiplier) ** 2, law=law, method="exact")


@singledispatch
def _rounds(participation: Participation) -> tuple[int, str]:
    """Independent Gaussian releases that a unit known to take part would be seen in, and the law's name."""
    raise Unsupported(f"no zero-concentrated DP is known for {participation!r}")


@_rounds.register
def _(participation: Separated) -> tuple[int, str]:
    return 1, "gaussian"


@_rounds.register
def _(participation: Poisson) -> tuple[int, str]:
    _whole(participation)
    return participation.steps, "poisson"


@_rounds.register
def _(participation: CyclicPoisson) -> tuple[int, str]:
    _whole(participation)
    return participation.rounds, "cyclic-poisson"


def _whole(participation: Poisson | CyclicPoisson) -> None:
    if participation.largest is not None:
        raise Unsupported(f"no Renyi divergence is known for {participation!r}, whose cut batches cost delta")


@_rounds.register
def _(participation: BallsInBins) -> tuple[int, str]:
    return 1, balls_in_bins.LAW


@singledispatch
def _divergence(participation: Participation, mechanism: Mechanism, order: float) -> tuple[float, str, bool]:
    """The bound, the law's name, and whether it is exact."""
    raise Unsupported(f"no Renyi divergence is known for {participation!r}")


@_divergence.register
def _(participation: Separated, mechanism: Mechanism, order: float) -> tuple[float, str, bool]:
    return order * zcdp(mechanism), "gaussian", True


@_divergence.register(Poisson)
@_divergence.register(CyclicPoisson)
def _(participation: Poisson | CyclicPoisson, mechanism: Mechanism, order: float) -> tuple[float, str, bool]:
    rounds, law = _rounds(participation)
    plain, a = order * zcdp(mechanism), ceil(order)
    if a > _MOST or participation.rate == 1.0:
        return plain, law, participation.rate == 1.0
    amplified = rounds * _sampled(float(mechanism.noise_multiplier), float(participation.rate), a)
    return min(plain, amplified), law, a == order and amplified <= plain


def _sampled(multiplier: float, rate: float, order: int) -> float:
    """One round at an integer order."""
    j = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms = binomial + (order - j) * np.log1p(-rate) + j * log(rate) + j * (j - 1) / (2.0 * multiplier**2)
    return max(0.0, float(logsumexp(terms))) / (order - 1)


@_divergence.register
def _(participation: BallsInBins, mechanism: Mechanism, order: float) -> tuple[float, str, bool]:
    plain, a = order * zcdp(mechanism), ceil(order)
    if participation.bins == 1 or a > _moments.MOST:
        return plain, balls_in_bins.LAW, participation.bins == 1
    bins = balls_in_bins.normalized(mechanism.strategy, participation, mechanism.sensitivity)
    scale = 1.0 / float(mechanism.noise_multiplier)
    return min(plain, _moments.divergence(bins, scale, a)), balls_in_bins.LAW, False
