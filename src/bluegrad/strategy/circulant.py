"""The Fourier (FFT) mechanism: a circulant square root of the prefix sum, embedded in twice as many steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.linalg import toeplitz

from bluegrad import _checks
from bluegrad.strategy.base import Array, Strategy, check_dense, check_prefix
from bluegrad.strategy.wrappers import Prefix

_BLOCK = 256


@final
@dataclass(frozen=True, eq=False, repr=False)
class Fourier(Strategy):
    """First n columns of the circulant M of size 2n whose square holds the prefix sum in its top-left block."""

    steps: int
    decoder: str

    def __repr__(self) -> str:
        return f"fourier(steps={self.steps}, decoder={self.decoder!r})"

    @cached_property
    def _spectrum(self) -> NDArray[np.complex128]:
        """Fourier transform S of (1, ..., 1, 0, ..., 0), half of each."""
        n = self.steps
        out = np.zeros(2 * n, dtype=np.complex128)
        odd = np.arange(1, 2 * n, 2)
        out[odd] = 2.0 / (1.0 - np.exp(-1j * np.pi * odd / n))
        out[0] = n
        return out

    @cached_property
    def _circulant(self) -> Array:
        """First column of M, shape (2n,)."""
        return np.asarray(fft.ifft(np.sqrt(self._spectrum)).real)

    @cached_property
    def _x(self) -> Array:
        """First row of C^T C, a symmetric Toeplitz matrix; that of B B^T as well with the plain decoder."""
        return np.asarray(fft.ifft(np.abs(self._spectrum)).real[: self.steps])

    def dense(self) -> Array:
        """C, shape (2 steps, steps)."""
        n, m = self.steps, self._circulant
        return m[(np.arange(2 * n)[:, None] - np.arange(n)) % (2 * n)]

    def noising(self) -> Array:
        """N, shape (steps, 2 steps): differences of M's first rows, or C^+ = (C^T C)^-1 C^T."""
        check_dense(self, "noising")
        if self.decoder == "plain":
            return np.concatenate(list(self._plain_columns()), axis=1)
        return self._l @ (self._l.T @ self.dense().T)

    def causal(self) -> Array:
        """L, shape (steps, steps)."""
        return self._l

    @cached_property
    def _l(self) -> Array:
        check_dense(self, "noise")
        if self.decoder == "optimal":
            return np.concatenate(list(self._optimal_columns()), axis=1)
        # B B^T is Toeplitz with first row x: its Cholesky factor, in differences of rows
        lower = np.tril(np.linalg.cholesky(toeplitz(self._x)))
        return np.tril(np.diff(lower, axis=0, prepend=0.0))

    def noise_columns(self) -> Iterator[Array]:
        """Blocks of columns whose outer products sum to N N^T, without an n x n matrix."""
        return self._plain_columns() if self.decoder == "plain" else self._optimal_columns()

    def _plain_columns(self) -> Iterator[Array]:
        n, m = self.steps, self._circulant
        for first in range(0, 2 * n, _BLOCK):
            j = np.arange(first, min(first + _BLOCK, 2 * n))
            yield np.diff(m[(np.arange(n)[:, None] - j) % (2 * n)], axis=0, prepend=0.0)

    def _optimal_columns(self) -> Iterator[Array]:
        """Columns of L with L L^T = (C^T C)^-1, last first: prediction-error filters, by Levinson's recursion."""
        n = self.steps
        block: list[Array] = []
        for order, (filter_, power) in enumerate(_levinson(self._x)):
            column = np.zeros(n)
            column[n - 1 - order :] = filter_ / sqrt(power)
            block.append(column)
            if len(block) == _BLOCK or order == n - 1:
                yield np.stack(block[::-1], axis=1)
                block = []

    @cached_property
    def residual(self) -> float:
        """Largest entry of (C^T C) f - power e_0 over the power, f the longest filter: what the recursion lost."""
        filter_, power = np.ones(1), 1.0
        for filter_, power in _levinson(self._x):  # noqa: B007 - the last one
            pass
        circle = fft.rfft(np.concatenate([self._x, [0.0], self._x[:0:-1]]))
        product = fft.irfft(circle * fft.rfft(filter_, 2 * self.steps), 2 * self.steps)[: self.steps]
        product[0] -= power
        return float(np.abs(product).max() / power)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag]: constant."""
        return np.full(self.steps - lag, self._x[lag])

    def gram_coefficients(self) -> Array:
        """First row of C^T C, shape (steps,)."""
        return self._x

    def column_norms(self) -> Array:
        """All equal: the circulant's."""
        return np.full(self.steps, sqrt(self._x[0]))

    def taps(self, t: int) -> Array | None:
        """Row t of L from the diagonal backwards."""
        return self._l[t, t::-1]

    @property
    def cost(self) -> tuple[int, int]:
        """One normal; the whole history added."""
        return 1, self.steps - 1

    def prefix(self, steps: int) -> Strategy:
        """The first steps of this mechanism."""
        check_prefix(steps, self)
        return self if steps == self.steps else Prefix(self, steps)

    def describe(self) -> dict[str, Any]:
        """Decoder."""
        return {"name": "fourier", "steps": self.steps, "parameters": {"decoder": self.decoder}}


def _levinson(x: Array) -> Iterator[tuple[Array, float]]:
    """Prediction-error filters of orders 0 .. n - 1 for a Toeplitz matrix of first row x, with their error powers.

    Durbin's recursion, O(n) memory: the filter f of order m has f_0 = 1 and (leading m + 1 block) f = power e_0.
    """
    filter_, power = np.ones(1), float(x[0])
    yield filter_, power
    for order in range(1, len(x)):
        reflection = -float(filter_ @ x[order:0:-1]) / power
        longer = np.append(filter_, 0.0)
        filter_ = longer + reflection * longer[::-1]
        power *= 1.0 - reflection * reflection
        yield filter_, power


def fourier(steps: int, *, decoder: str = "plain") -> Strategy:
    """The FFT mechanism: C the first n columns of the circulant square root of the prefix sum on 2n steps.

    S is the Fourier transform of n ones and n zeros, M = ifft(sqrt(S)) circulant, M^2 the prefix sum in its top-left
    block. Errors cost O(n^2) time and O(n) memory; the stream keeps the whole noise history.

    Args:
        steps: number of steps n.
        decoder: "plain" (the first n rows of M) or "optimal" (the pseudo-inverse, by Levinson's recursion).

    Returns:
        The strategy, C of shape (2n, n).

    Raises:
        ValueError: steps isn't a positive integer, or an unknown decoder.

    Example:
        >>> from bluegrad import SinglePass, sensitivity
        >>> round(sensitivity(fourier(16), SinglePass(16)), 6)
        1.365243

    Source: arXiv 2211.06530, section 4 and appendix I.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    return Fourier(steps, _checks.choice("decoder", decoder, ("plain", "optimal")))
