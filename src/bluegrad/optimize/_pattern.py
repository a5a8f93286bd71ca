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
