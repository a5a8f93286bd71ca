"""The Gaussian field of balls-in-bins: what the loss depends on, in as many dimensions as there are bins."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bluegrad._checks import Unsupported
from bluegrad.participation import BallsInBins
from bluegrad.strategy import Strategy

Array = NDArray[np.float64]

MOST_BINS = 4096
# Bins that are multiplied as one block; and singular values that single precision doesn't see.
_SMALL, _SINGLE = 128, 3e-8


def gram(strategy: Strategy, participation: BallsInBins) -> Array:
    """G_ij = <m_i, m_j>, shape (bins, bins), m_i = sum_j C[:, i + j b]: O(n b) time, O(n + b^2) memory if Toeplitz.

    Args:
        strategy: C without negative entries (`score.certify` refuses others).
        participation: n steps, k epochs, b = n / k bins.

    Raises:
        Unsupported: more bins than MOST_BINS.
    """
    n, k, b = participation.steps, participation.epochs, participation.bins
    if b > MOST_BINS:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: its {b} bins are more than the {MOST_BINS} whose Gram matrix is "
            "formed; use more epochs, larger batches, or FixedEpochs"
        )
    c = strategy.coefficients()
    if c is None:
        dense = strategy.dense()
        means = dense.reshape(len(dense), k, b).sum(axis=1)
        return np.asarray(means.T @ means)
    # m_i is m_0 shifted down by i and cut at n, so <m_i, m_(i+d)> = sum over v < n - i - d of m_0[v] m_0[v + d]
    padded = np.zeros(n)
    padded[: len(c)] = np.maximum(c, 0.0)
    first = np.cumsum(padded.reshape(k, b), axis=0).ravel()
    out = np.empty((b, b))
    for d in range(b):
        products = first[: n - d] * first[d:]
        body = n - b + 1  # terms that even the last pair has
        sums = products[:body].sum() + np.concatenate([[0.0], np.cumsum(products[body:])])
        i = np.arange(b - d)
        out[i, i + d] = out[i + d, i] = sums[::-1]
    return out


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins with Gram matrix G, shape (b, b), G >= 0, in units in which the noise has standard deviation 1 / scale.

    Under Q the logarithms of the likelihood ratios, u_i - S_ii / 2 with S = scale^2 G, are Gaussian with
    covariance S; the likelihood ratio of balls-in-bins is their exponentials' mean.
    """

    matrix: Array

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the matrix."""
        return hashlib.sha256(np.ascontiguousarray(self.matrix).tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bins) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def count(self) -> int:
        """Number of bins b."""
        return len(self.matrix)

    @cached_property
    def squares(self) -> Array:
        """Diagonal of G: the squared norms of the m_i, shape (b,)."""
        return np.diag(self.matrix).copy()

    @cached_property
    def largest(self) -> float:
        """Largest squared norm."""
        return float(self.squares.max())

    @cached_property
    def mean_square(self) -> float:
        """Squared norm of the mean of the m_i."""
        return float(self.matrix.mean())

    @cached_property
    def root(self) -> Root:
        """A matrix R with R R^T = G, for drawing the field."""
        try:
            return Root.of(np.asarray(np.linalg.cholesky(self.matrix), dtype=np.float64), float(np.sqrt(self.largest)))
        except np.linalg.LinAlgError:  # not positive definite to rounding
            values, vectors = np.linalg.eigh(self.matrix)
            return Root(np.ascontiguousarray((vectors * np.sqrt(np.maximum(values, 0.0))).T.astype(np.float32)))

    @cached_property
    def single(self) -> NDArray[np.float32]:
        """G in single precision: row i is where a charge on bin i moves the field."""
        return self.matrix.astype(np.float32)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """Two ways of conditioning the field: on nothing, and on the mean over the bins."""
        load = self.matrix.mean(axis=1) / np.sqrt(self.mean_square)
        return tuple(Mode.of(self.matrix, v) for v in (np.zeros(self.count), load))


@dataclass(frozen=True, eq=False)
class Root:
    """A matrix R in single precision: as it is, or lower-triangular by halves with a low-rank block between them.

    Neighbouring bins are correlated and distant ones smoothly so, and the block has a rank of a few.

    Args:
        dense: R^T, shape (b, b), of a small or unstructured R; or else
        halves: the two diagonal blocks, and
        bridge: (V, U), shapes (b1, rank) and (rank, b2), with the block below the diagonal (V U)^T.
    """

    dense: NDArray[np.float32] | None
    halves: tuple[Root, Root] | None = None
    bridge: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    @staticmethod
    def of(lower: Array, unit: float) -> Root:
        """Of a lower-triangular matrix, exact to the single precision of numbers of size `unit`."""
        size = len(lower)
        half = size // 2
        if size > _SMALL:
            left, values, right = np.linalg.svd(lower[half:, :half], full_matrices=False)
            rank = int(np.count_nonzero(values > _SINGLE * unit))
            if 4 * rank < half:
                v = np.ascontiguousarray((right[:rank] * values[:rank, None]).T.astype(np.float32))
                u = np.ascontiguousarray(left[:, :rank].T.astype(np.float32))
                return Root(None, (Root.of(lower[:half, :half], unit), Root.of(lower[half:, half:], unit)), (v, u))
        return Root(np.ascontiguousarray(lower.T.astype(np.float32)))

    def times(self, normals: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Write R z for each row z of `normals`, shape (samples, b)."""
        if self.dense is not None:
            np.matmul(normals, self.dense, out=out)
            return
        assert self.halves is not None and self.bridge is not None
        half, (v, u) = len(self.bridge[0]), self.bridge
        self.halves[0].times(normals[:, :half], out[:, :half])
        self.halves[1].times(normals[:, half:], out[:, half:])
        out[:, half:] += (normals[:, :half] @ v) @ u


@dataclass(frozen=True, eq=False)
class Mode:
    """The field as load * h plus an independent rest, h ~ Normal(0, 1), by bins of variance `rest`.

    For functions F_i >= 0, E prod F_i(rest_i) <= prod (E F_i(rest_i)^p)^(1/p) with p = `exponent`: the smallest
    for which p * diag(cov) - cov is positive semidefinite.

    Source: Chen, Dafnis and Paouris 2015 (arXiv 1306.2410), theorem 1.
    """

    load: Array
    rest: Array
    exponent: float

    @staticmethod
    def of(matrix: Array, load: Array) -> Mode:
        """Condition on h with covariance `load` to the bins."""
        cov = matrix - np.outer(load, load)
        rest = np.maximum(np.diag(cov), 1e-12 * float(np.diag(matrix).max()))
        scaled = cov / np.sqrt(np.outer(rest, rest))
        # rounding of the eigenvalue: far below 1e-9 for matrices of a few thousand bins
        exponent = max(1.0, float(np.linalg.eigvalsh(scaled)[-1]) * (1.0 + 1e-9))
        return Mode(load, rest, exponent)
