"""Importance sampling of balls-in-bins, and an upper confidence bound on the mean of non-negative weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import log, log1p

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from bluegrad.accounting._bins import Array, Bins
from bluegrad.accounting._excess import Proposal

Floats = NDArray[np.float32]
# Samples times bins of one block: a few arrays of this size are alive at a time, in every thread.
_BLOCK = 1 << 18
# Largest logarithm between the bins' normalising factors for which their products with powers of the field are formed
# in float32: the bin of the largest field then has at least e^-60, and what underflows is far below it.
_SPREAD = 60.0
# Relative allowance for the field being drawn and exponentiated in float32 (errors of a weight below 1e-4).
ROUNDING = 5e-4


@dataclass(frozen=True)
class Weights:
    """Non-zero weights of `count` independent samples; the rest of them are zero."""

    values: Array
    count: int

    @property
    def mean(self) -> float:
        """Plain estimate."""
        return float(self.values.sum()) / self.count

    def truncated(self, ceiling: float) -> Weights:
        """Each weight cut at the ceiling."""
        return Weights(np.minimum(self.values, ceiling), self.count)

    @property
    def second_moment(self) -> float:
        """Mean of the squares; infinite where it overflows."""
        with np.errstate(over="ignore"):
            return float(np.dot(self.values, self.values)) / self.count


def upper_confidence(weights: Weights, bet: float, failure: float) -> float:
    """Upper bound on the mean of weights >= 0, at most 1 / bet, that fails with probability `failure` at most.

    For a mean of at least mu the product of 1 + bet (mu - X) over independent X has expectation at
    most 1 and no negative factor, so by Markov it reaches 1 / failure with probability `failure` at most; the
    bound is the mu at which it does. Near the best bet, sqrt(2 log(1/failure) / (n E X^2)), it lies
    sqrt(2 log(1/failure) E X^2 / n) above the mean; the bet must not depend on these samples.

    Source: Waudby-Smith and Ramdas 2023 (arXiv 2010.09686), section 4.
    """
    assert weights.values.size == 0 or float(weights.values.max()) * bet <= 1.0 + 1e-12
    x, zeros, target = weights.values, weights.count - weights.values.size, -log(failure)

    def gain(mu: float) -> float:
        return float(np.log1p(bet * (mu - x)).sum()) + zeros * log1p(bet * mu) - target

    low = max(weights.mean, 1e-12 / bet)  # there every factor is positive, and by Jensen the gain isn't
    high = 2.0 * low + 2.0 * target / (bet * weights.count)
    while gain(high) < 0.0:
        high *= 2.0
    return float(brentq(gain, low, high, xtol=1e-9 * high, rtol=1e-9)) * (1.0 + 1e-8)


def draw_remove(bins: Bins, scale: float, epsilon: float, proposal: Proposal, count: int, seed: list[int]) -> Weights:
    """Weights (e^L - e^epsilon)+ Q / T of `count` samples of the proposal T; their mean is delta(P || Q)."""

    def weigh(log_ratio: Array, log_density: Array) -> Array:
        gain = -np.expm1(np.minimum(epsilon - log_ratio, 0.0))
        return gain * np.exp(np.minimum(log_ratio - log_density, 600.0))

    return _draw(bins, scale, proposal, count, seed, weigh)


def draw_add(bins: Bins, scale: float, epsilon: float, proposal: Proposal, count: int, seed: list[int]) -> Weights:
    """Weights (1 - e^(epsilon + L))+ Q / T of `count` samples of the proposal T; their mean is delta(Q || P)."""

    def weigh(log_ratio: Array, log_density: Array) -> Array:
        return -np.expm1(np.minimum(epsilon + log_ratio, 0.0)) * np.exp(np.minimum(-log_density, 600.0))

    return _draw(bins, scale, proposal, count, seed, weigh)


def _draw(
    bins: Bins,
    scale: float,
    proposal: Proposal,
    count: int,
    seed: list[int],
    weigh: Callable[[Array, Array], Array],
) -> Weights:
    rows = max(1, _BLOCK // bins.count)
    blocks = -(-count // rows)

    def block(index: int) -> Array:
        rng = np.random.Generator(np.random.SFC64([*seed, index]))
        size = min(rows, count - index * rows)
        log_ratio, log_density = _block(bins, scale, proposal, size, rng)
        weights = weigh(log_ratio, log_density)
        return np.asarray(weights[weights > 0.0])

    # blocks in parallel and BLAS on one thread: its own threads would wait for each other most of the time
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        parts: Iterator[Array] = pool.map(block, range(blocks))
        return Weights(np.concatenate(list(parts)), count)


def _block(bins: Bins, scale: float, proposal: Proposal, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """(L, log T/Q) of samples of the proposal T, each of shape (size,)."""
    square, mean_square = scale * scale * bins.squares, scale * scale * bins.mean_square
    singles = len(proposal.charges)
    kinds = rng.choice(singles + len(proposal.lifts), size=size, p=[*proposal.weights, *proposal.lift_weights])
    field = np.take(bins.single, rng.integers(bins.count, size=size), axis=0)
    charge = np.array([*proposal.charges, *[0.0] * len(proposal.lifts)])[kinds] * scale * scale
    field *= charge[:, None].astype(np.float32)
    noise = np.empty_like(field)
    bins.root.times(rng.standard_normal((size, bins.count), dtype=np.float32), noise)
    noise *= np.float32(scale)
    field += noise
    parts = []
    if proposal.lifts:
        lift = np.array([*[0.0] * singles, *proposal.lifts])[kinds]
        field += np.outer(lift, scale * scale * bins.matrix.mean(axis=1)).astype(np.float32)
        mean = field.mean(axis=1, dtype=np.float64)
        parts = [a * mean - 0.5 * a * a * mean_square + log(w) for a, w in zip(proposal.lifts, proposal.lift_weights)]
    log_ratio, log_densities = _log_means(field, square, proposal.charges)
    parts += [value + log(w) for value, w in zip(log_densities, proposal.weights)]
    return log_ratio, np.asarray(logsumexp(np.array(parts), axis=0))


def _log_means(field: Floats, square: Array, charges: tuple[float, ...]) -> tuple[Array, list[Array]]:
    """log mean_i exp(c u_i - c^2 S_ii / 2) of c = 1 and of every charge, for every row of the field, consumed."""
    base, spread = float(square.min()), float(square.max() - square.min())
    if 0.5 * spread * max([1.0, *charges]) ** 2 > _SPREAD:
        exact = field.astype(np.float64)
        means = [logsumexp(c * exact - 0.5 * c * c * square, axis=1) - log(len(square)) for c in (1.0, *charges)]
        return means[0], means[1:]
    top = field.max(axis=1)
    field -= top[:, None]
    peak = top.astype(np.float64)
    field *= np.float32(0.5)
    half = np.exp(field, out=field)
    power, scratch, reached = half.copy(), np.empty_like(half), 1
    found: dict[float, Array] = {}
    for c in sorted({1.0, *charges}):
        while reached < round(2.0 * c):
            power *= half
            reached += 1
        norm = np.exp(-0.5 * c * c * (square - base)).astype(np.float32)
        sums = np.multiply(power, norm, out=scratch).sum(axis=1).astype(np.float64)
        found[c] = c * peak - 0.5 * c * c * base + np.log(sums / len(square))
    return found[1.0], [found[c] for c in charges]
