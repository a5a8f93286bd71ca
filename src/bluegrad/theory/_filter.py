"""Correlated noise in blocks of steps, for many columns at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from scipy import fft, signal

from bluegrad import _checks
from bluegrad.strategy.base import Array
from bluegrad.theory.transfer import Autoregressive, Transfer

Block = NDArray[np.float32]

# Up to this many taps a sum of shifted blocks is faster than an FFT.
_SHORT = 24
# Taps past which the noise's transfer function changes by less than this share of what matters.
_TAIL = 3e-4
# Most values of raw noise (float32) that are remembered.
VALUES = 1 << 26
_COLUMNS = 64


def taps(noise: Transfer, steps: int, slowest: float) -> Array:
    """As many coefficients of N as a filter of rate `slowest` can tell from all of them, at most `steps`.

    Dropping n_t, t >= m, changes N(w) by at most the sum of their absolute values, compared with |N| where the filter
    passes most.
    """
    n = noise.coefficients(steps)
    scale = float(np.sqrt(noise.power(np.array([slowest]))[0]))
    tail = np.cumsum(np.abs(n[::-1]))[::-1]
    return n[: max(int(np.searchsorted(-tail, -_TAIL * scale)), 1)]


class Filtered:
    """Rows of N Z for independent columns, block after block; the raw normals are float32."""

    def __init__(self, noise: Transfer, steps: int, columns: int, slowest: float, generator: np.random.Generator):
        self._generator = generator
        self._columns = columns
        self._recurrence = noise.values if isinstance(noise, Autoregressive) else None
        self._taps = np.ones(1) if self._recurrence is not None else taps(noise, steps, slowest)
        if len(self._taps) * columns > VALUES:
            raise _checks.fail(
                "noise", noise.name, f"remembers {len(self._taps)} steps of {columns} columns, too many to hold",
                "use fewer repeats or directions, more damping, or a BLT (bluegrad.approximated)",
            )  # fmt: skip
        kept = len(self._taps) - 1
        # a long memory is filtered along time, which then is the last axis
        self._long = kept >= _SHORT
        self._before = np.zeros((columns, kept) if self._long else (kept, columns), dtype=np.float32)
        self._state = np.zeros((0 if self._recurrence is None else len(self._recurrence) - 1, columns), np.float32)
        rows = max(VALUES // (4 * columns), 1)
        if self._long:  # blocks shorter than the memory would be mostly overlap; with it, they fill a fast FFT
            rows = -(-max(rows + kept, 3 * kept) // 960) * 960 - kept
        self._rows = min(rows, steps)

    def blocks(self, steps: int) -> Iterator[Block]:
        """Blocks of rows, `steps` in all, each made on a second thread while the one before is used."""
        sizes = [min(self._rows, steps - start) for start in range(0, steps, self._rows)]
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self.block, sizes[0])
            for size in sizes[1:]:
                ready, coming = coming.result(), pool.submit(self.block, size)
                yield ready
            yield coming.result()

    def block(self, rows: int) -> Block:
        """The next `rows` rows, shape (rows, columns)."""
        if self._long:
            raw = self._generator.standard_normal((self._columns, rows), dtype=np.float32)
            whole = np.concatenate([self._before, raw], axis=1)
            self._before = whole[:, rows:].copy()
            return _convolved(self._taps.astype(np.float32), whole, rows)
        raw = self._generator.standard_normal((rows, self._columns), dtype=np.float32)
        if self._recurrence is not None and len(self._recurrence) > 1:
            raw, self._state = signal.lfilter(
                np.ones(1, np.float32), self._recurrence.astype(np.float32), raw, axis=0, zi=self._state
            )
            return raw
        kept = len(self._taps) - 1
        if not kept:
            return raw * np.float32(self._taps[0])
        whole = np.concatenate([self._before, raw])
        self._before = whole[-kept:].copy()
        out = np.zeros_like(raw)
        for j, weight in enumerate(self._taps):
            out += np.float32(weight) * whole[kept - j : kept - j + rows]
        return out


def _convolved(weights: Block, whole: Block, rows: int) -> Block:
    """The last `rows` steps of the convolution along the last axis, transposed: shape (rows, columns)."""
    size = fft.next_fast_len(whole.shape[1], real=True)
    spectrum = fft.rfft(weights, size)
    out = np.empty((rows, len(whole)), dtype=np.float32)
    for start in range(0, len(whole), _COLUMNS):
        product = fft.rfft(whole[start : start + _COLUMNS], size, axis=1)
        product *= spectrum
        # circular wrap-around reaches the first len(weights) - 1 steps only, which aren't returned
        part = fft.irfft(product, size, axis=1)[:, whole.shape[1] - rows : whole.shape[1]]
        out[:, start : start + _COLUMNS] = part.T
    return out
