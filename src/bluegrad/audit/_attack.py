"""The strongest attack on a law: its likelihood ratio, canary present against absent.

In whitened coordinates the noise is white and a canary that joins steps S adds sum_(t in S) signs[t] effects[:, t].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from math import log

import numpy as np
from scipy.special import logsumexp

from bluegrad._checks import Unsupported
from bluegrad.audit._canary import Array, Canary
from bluegrad.participation import BallsInBins, CyclicPoisson, Participation, Poisson, Separated

Score = Callable[[Array], Array]


@singledispatch
def log_likelihood_ratio(law: Participation, effects: Array, canary: Canary) -> Score:
    """Log of the density of whitened releases with the canary over that without, as a function.

    Args:
        law: participation by which batches are drawn.
        effects: whitened effect of a unit gradient at each step, shape (steps, steps).
        canary: signs, and the pattern of a known partition.

    Returns:
        Function from whitened releases, shape (steps, count), to log ratios, shape (count,).

    Raises:
        Unsupported: no likelihood is known for the law.
    """
    raise Unsupported(f"no attack is known for {law!r}")


@log_likelihood_ratio.register
def _(law: Separated, effects: Array, canary: Canary) -> Score:
    assert canary.pattern is not None
    shift = effects @ (canary.signs * canary.pattern)
    return lambda white: _gaussian(shift, white)


@log_likelihood_ratio.register
def _(law: BallsInBins, effects: Array, canary: Canary) -> Score:
    shifts = (effects * canary.signs).reshape(len(effects), law.epochs, law.bins).sum(axis=1)  # (steps, bins)
    return lambda white: logsumexp([_gaussian(shift, white) for shift in shifts.T], axis=0) - log(law.bins)


@log_likelihood_ratio.register
def _(law: CyclicPoisson, effects: Array, canary: Canary) -> Score:
    # rounds of the first group: their effects have no coordinate in common, so their ratios multiply
    return _rounds((effects * canary.signs)[:, :: law.period], float(law.rate))


@log_likelihood_ratio.register
def _(law: Poisson, effects: Array, canary: Canary) -> Score:
    return _rounds(effects * canary.signs, float(law.rate))


def _gaussian(shift: Array, white: Array) -> Array:
    return np.asarray(shift @ white - 0.5 * float(shift @ shift))


def _rounds(shifts: Array, rate: float) -> Score:
    """Independent rounds, each joined with probability `rate`; shifts of shape (steps, rounds)."""
    stays_out = log(1.0 - rate) if rate < 1.0 else -np.inf

    def score(white: Array) -> Array:
        total = np.zeros(white.shape[1])
        for shift in shifts.T:
            total += np.logaddexp(stays_out, log(rate) + _gaussian(shift, white))
        return total

    return score
