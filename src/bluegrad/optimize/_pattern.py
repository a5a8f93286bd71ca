"""Squared sensitivity of a Toeplitz strategy with its gradient in the coefficients, as `score.certify` has it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bluegrad.participation import Separated

Array = NDArray[np.float64]


def participations(law: Separated) -> int:
    """Most participations that fit the horizon."""
    return min(law.times, -(-law.steps // law.separation))


def column_weights(law: Separated, bands: int) -> Array:
    """m with sens^2 = sum_i m_i c_i^2 for at most `separation` bands: in how many columns of the pattern c_i fits."""
    starts = law.separation * np.arange(participations(law))
    return np.asarray((np.arange(bands)[:, None] < law.steps - starts).sum(axis=1), dtype=np.float64)


def repeated(c: Array, law: Separated) -> Array:
    """s = sum_(j<k) C[:, j b], shape (steps,): what a unit of the first pattern adds up to."""
    n, b, k = law.steps, law.separation, participations(law)
    blocks = _blocks(c, n, b)
    sums = np.cumsum(blocks, axis=0)
    if k < len(sums):
        sums[k:] -= sums[:-k].copy()
    return sums.reshape(-1)[:n]


def repeated_transpose(s: Array, law: Separated) -> Array:
    """The transpose of `repeated`, shape (steps,): entry t is sum_(j<k) s_(t + j b)."""
    n, b, k = law.steps, law.separation, participations(law)
    sums = np.cumsum(_blocks(s, n, b)[::-1], axis=0)[::-1]
    if k < len(sums):
        sums[:-k] -= sums[k:].copy()
    return sums.reshape(-1)[:n]


def _blocks(x: Array, n: int, b: int) -> Array:
    out = np.zeros(-(-n // b) * b)
    out[: len(x)] = x[:n]
    return out.reshape(-1, b)


def absolute_gram(c: Array, law: Separated, rounded: float) -> tuple[float, Array]:
    """Sum of |X| over the first pattern of n = k b steps and its gradient in c, |X| rounded off near 0, O(n k).

    X[i, i + l] = sum over m of <block m, block m + l> for m < k - i - l, the blocks of c being b long.
    """
    n, b, k = law.steps, law.separation, law.steps // law.separation
    blocks = _blocks(c, n, b)
    products = blocks @ blocks.T
    value, back = 0.0, np.zeros((k, k))
    for lag in range(k):
        twice = 1.0 if lag == 0 else 2.0
        entries = np.cumsum(np.diagonal(products, lag))[::-1]  # X[i, i + lag] for every i
        root = np.sqrt(entries * entries + rounded * rounded)
        value += twice * float((root - rounded).sum())
        slope = np.divide(entries, root, out=np.zeros_like(root), where=root > 0.0)
        m = np.arange(k - lag)
        back[m, m + lag] = twice * np.cumsum(slope)[::-1]
    return value, ((back + back.T) @ blocks).reshape(-1)
