"""Deterministic bounds for balls-in-bins: Renyi moments without sampling, and no amplification at all."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np
from scipy.special import log_ndtr

from bluegrad.accounting import gaussian
from bluegrad.accounting._bins import Bins

# Largest order of a moment.
MOST = 512
_MARGIN = 1e-9


def delta(bins: Bins, scale: float, epsilon: float) -> float:
    """Upper bound on delta at epsilon in both directions; never below the truth."""
    plain = _unamplified(bins, scale, epsilon)
    amplified = max(_remove(bins, scale, epsilon), add(bins, scale, epsilon))
    return min(1.0, plain, amplified * (1.0 + _MARGIN))


def _unamplified(bins: Bins, scale: float, epsilon: float) -> float:
    """The bin made known: delta is jointly convex, so at most the mean over the bins of the Gaussian mechanism's."""
    known, counts = np.unique(bins.squares, return_counts=True)
    deltas = [gaussian.Gaussian(1.0 / (scale * sqrt(float(square)))).delta(epsilon) for square in known]
    return float(np.dot(deltas, counts)) / bins.count


def _remove(bins: Bins, scale: float, epsilon: float) -> float:
    """Least over orders a of E_Q[e^(a L)] e^(-(a-1) epsilon) (a-1)^(a-1) / a^a, a bound on E_Q[(e^L - e^epsilon)+].

    E_Q[e^(a L)] is the mean over bins i_1 .. i_a of exp(sum_(j<k) S_(i_j i_k)). Drawn one after the other in
    proportion to their share, it is E prod_k mean_i exp(sum_(j<k) S_(i, i_j)), and by Hölder's inequality the
    factor with k earlier bins is at most max_j mean_i exp(k S_ij).
    """
    best, log_moment, rising = inf, 0.0, 0
    for order in range(2, MOST + 1):
        log_moment += _growth(bins, scale, order - 1)
        value = log_moment - (order - 1) * (epsilon - log(order - 1)) - order * log(order)
        rising = 0 if value < best else rising + 1
        best = min(best, value)
        if rising > 3:
            break
    return exp(min(best, 0.0))


def _growth(bins: Bins, scale: float, order: int) -> float:
    """Bound on log E_Q[e^((order + 1) L)] - log E_Q[e^(order L)]: max_j log mean_i exp(order S_ij)."""
    exponent = order * scale * scale * bins.matrix
    top = float(exponent.max())
    return top + log(float(np.exp(exponent - top).mean(axis=0).max()))


def divergence(bins: Bins, scale: float, order: int) -> float:
    """Bound on the Renyi divergence of an integer order, 2 .. MOST, in both directions.

    For Q from P the likelihood ratio is at least e^V, V the mean of the log-likelihood ratios, which is Gaussian, and
    E_Q[e^(-(a-1) V)] is (a - 1) times mean S_ii / 2 + (a - 1) mean_ij S_ij / 2 in the exponent.
    """
    remove = sum(_growth(bins, scale, k) for k in range(1, order)) / (order - 1)
    add = 0.5 * scale * scale * (float(bins.squares.mean()) + (order - 1) * bins.mean_square)
    return max(remove, add) * (1.0 + _MARGIN)


def add(bins: Bins, scale: float, epsilon: float) -> float:
    """Bound on E_Q[(1 - e^(epsilon + L))+] by L >= the mean over bins of log-likelihood ratios, which is Gaussian."""
    mean, deviation = 0.5 * scale * scale * float(bins.squares.mean()), scale * sqrt(bins.mean_square)
    x = (mean - epsilon) / deviation
    above = float(log_ndtr(x))
    below = epsilon - mean + 0.5 * deviation * deviation + float(log_ndtr(x - deviation))
    # where the two nearly cancel, the difference keeps no digits: then at least their rounding
    return exp(above) * max(-float(np.expm1(below - above)), 1e-9)
