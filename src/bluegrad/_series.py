"""Power series in float64: a lower-triangular Toeplitz matrix is one, products and inverses are theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.linalg import blas

Array = NDArray[np.float64]

# Below this length of the shorter factor a direct loop is both faster and more accurate than an FFT.
_SHORT = 64
# A series of up to this many coefficients is inverted by its recurrence: exact in sign, and as fast.
_BANDED = 256
_CHUNK = 1 << 13


def multiply(left: Array, right: Array, length: int) -> Array:
    """First `length` coefficients of the product of two series, in O(n log n).

    Args:
        left: coefficients, shape (p,).
        right: coefficients, shape (q,).
        length: how many coefficients to return.

    Returns:
        Coefficients, shape (length,), zero past degree p + q - 2.
    """
    short, long = sorted((left[:length], right[:length]), key=len)
    if len(short) <= _SHORT:
        out = np.zeros(length)
        for j, weight in enumerate(short):
            part = long[: length - j]
            out[j : j + len(part)] += weight * part
        return out
    full = len(short) + len(long) - 1
    size = fft.next_fast_len(full, real=True)
    out = fft.irfft(fft.rfft(short, size) * fft.rfft(long, size), size)[: min(full, length)]
    return np.pad(out, (0, length - len(out)))


def inverse(series: Array, length: int) -> Array:
    """First `length` coefficients of 1 / series.

    Forward substitution in O(length p) where the series is short, which keeps every coefficient's relative
    accuracy (and so its sign); Newton's doubling by FFT in O(n log n) otherwise.

    Args:
        series: coefficients, shape (p,), the first not zero.
        length: how many coefficients to return.

    Returns:
        Coefficients, shape (length,).
    """
    if len(series) <= _BANDED:
        return divide(np.ones(1), series, length)
    out = divide(np.ones(1), series[:_BANDED], _BANDED)
    while len(out) < length:
        size = min(2 * len(out), length)
        # y <- y (2 - s y): every round doubles the number of right coefficients
        residual = -multiply(series, out, size)
        residual[0] += 2.0
        out = multiply(out, residual, size)
    return out[:length]


def inverse_root(series: Array, length: int) -> Array:
    """First `length` coefficients of series^(-1/2), by Newton's doubling in O(length log length).

    Args:
        series: coefficients, shape (p,), the first positive.
        length: how many coefficients to return.

    Returns:
        Coefficients, shape (length,).
    """
    out = np.array([series[0] ** -0.5])
    while len(out) < length:
        size = min(2 * len(out), length)
        # y <- y (3 - s y^2) / 2: every round doubles the number of right coefficients
        residual = -multiply(series, multiply(out, out, size), size)
        residual[0] += 3.0
        out = 0.5 * multiply(out, residual, size)
    return out[:length]


def divide(numerator: Array, denominator: Array, length: int) -> Array:
    """First `length` coefficients of numerator / denominator, the denominator short, in O(length p).

    Forward substitution in chunks that share one banded matrix, shape (p, chunk).

    Args:
        numerator: coefficients, shape (q,).
        denominator: coefficients, shape (p,), the first not zero.
        length: how many coefficients to return.

    Returns:
        Coefficients, shape (length,).
    """
    p, chunk = len(denominator), min(_CHUNK, length)
    out = np.zeros(length)
    bands = np.repeat(denominator[None, :], chunk, axis=0).T  # column-major, which BLAS takes as it is
    for start in range(0, length, chunk):
        size = min(chunk, length - start)
        right = np.zeros(chunk)
        part = numerator[start : start + size]
        right[: len(part)] = part
        carried = out[max(start - p + 1, 0) : start]
        if len(carried):
            # rows of this chunk that still reach back into the one before
            reach = multiply(carried, denominator, len(carried) + p - 1)[len(carried) :]
            right[: len(reach)] -= reach[:chunk]
        out[start : start + size] = blas.dtbsv(p - 1, bands, right, lower=1)[:size]
    return out


def strip(series: Array) -> Array:
    """The series without its trailing zeros, at least one coefficient long."""
    last = int(np.flatnonzero(series)[-1]) if series.any() else 0
    return series[: last + 1]
