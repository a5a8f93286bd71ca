"""Strategies given by a whole matrix, or by banded columns of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_banded

from bluegrad import _checks
from bluegrad._checks import Unsupported
from bluegrad.strategy.base import (
    MATRIX_STEPS,
    Array,
    State,
    Strategy,
    causal_inverse,
    check_dense,
    check_horizon,
    check_prefix,
    lower_inverse,
    stepped,
)
from bluegrad.strategy.series import digest

_BLOCK = 1024


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dense(Strategy):
    """Any C of full column rank; N is its inverse, or its pseudo-inverse where it isn't lower-triangular."""

    matrix: Array

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return int(self.matrix.shape[1])

    def __repr__(self) -> str:
        return f"dense(steps={self.steps}, shape={self.matrix.shape})"

    @cached_property
    def _r(self) -> Array:
        """Lower-triangular R with R^T R = C^T C."""
        c = self.matrix
        square = c.shape[0] == c.shape[1] and not np.triu(c, 1).any()
        return c if square else causal_inverse(c)

    @cached_property
    def _l(self) -> Array:
        return lower_inverse(self._r)

    @cached_property
    def _x(self) -> Array:
        return np.asarray(self.matrix.T @ self.matrix)

    @cached_property
    def _bands(self) -> int:
        i, j = np.nonzero(self._x)
        return int(np.abs(i - j).max(initial=0)) + 1

    @property
    def bands(self) -> int:
        """Bands of C^T C."""
        return self._bands

    def dense(self) -> Array:
        """C, shape (m, steps)."""
        return self.matrix

    def noising(self) -> Array:
        """C^-1, or C^+ = (C^T C)^-1 C^T, shape (steps, m)."""
        return self._l if self._r is self.matrix else self._l @ self._l.T @ self.matrix.T

    def causal(self) -> Array:
        """L = R^-1, shape (steps, steps)."""
        return self._l

    def noise_columns(self) -> Iterator[Array]:
        """L in blocks of columns."""
        for first in range(0, self.steps, _BLOCK):
            yield self._l[:, first : first + _BLOCK]

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag]."""
        return np.diagonal(self._x, lag)

    def column_norms(self) -> Array:
        """Norms of C's columns."""
        return np.sqrt(np.diag(self._x))

    def taps(self, t: int) -> Array | None:
        """Row t of L from the diagonal backwards."""
        return self._l[t, t::-1]

    def prefix(self, steps: int) -> Strategy:
        """The top-left block of R: what the first releases alone amount to."""
        check_prefix(steps, self)
        return self if steps == self.steps else Dense(_read_only(self._r[:steps, :steps]))

    def describe(self) -> dict[str, Any]:
        """Shape and digest."""
        return {
            "name": "dense",
            "steps": self.steps,
            "parameters": {"rows": len(self.matrix), "sha256": digest(self.matrix)},
        }


@final
@dataclass(frozen=True, eq=False, repr=False)
class Banded(Strategy):
    """Lower-triangular C with few bands and columns of their own: columns[j, i] = C[j + i, j]."""

    name: str
    columns: Array
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return len(self.columns)

    def __repr__(self) -> str:
        bands = "" if self.name == "full_batch" else f", bands={self.bands}"
        return f"{self.name}(steps={self.steps}{bands})"

    @property
    def bands(self) -> int:
        """Bands of C."""
        return int(self.columns.shape[1])

    def dense(self) -> Array:
        """C, shape (steps, steps)."""
        n, out = self.steps, np.zeros((self.steps, self.steps))
        for i in range(self.bands):
            j = np.arange(n - i)
            out[j + i, j] = self.columns[: n - i, i]
        return out

    def noising(self) -> Array:
        """N = C^-1, shape (steps, steps)."""
        check_dense(self, "inverse")
        return np.tril(solve_banded((self.bands - 1, 0), np.ascontiguousarray(self.columns.T), np.eye(self.steps)))

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag] in O(n bands)."""
        n, p = self.steps, self.bands
        if lag >= p:
            return np.zeros(n - lag)
        return np.asarray(np.einsum("ij,ij->i", self.columns[: n - lag, lag:], self.columns[lag:, : p - lag]))

    def column_norms(self) -> Array:
        """Norms of C's columns."""
        return np.linalg.norm(self.columns, axis=1)

    def kept(self, t: int) -> int:
        """Earlier outputs, newest first."""
        return min(t, self.bands - 1)

    @property
    def memory(self) -> int:
        """Model copies: bands - 1."""
        return self.bands - 1

    @property
    def cost(self) -> tuple[int, int]:
        """One normal; bands - 1 vectors added."""
        return 1, self.bands - 1

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """y_t = (z_t - sum_i C[t, t - i] y_(t-i)) / C[t, t].

        Raises:
            ValueError: the stream is past its last step.
        """
        t, kept = state
        check_horizon(t, self.steps)
        y = z
        for i, earlier in enumerate(kept, start=1):
            y = y - float(self.columns[t - i, i]) * earlier
        y = y / float(self.columns[t, 0])
        return y, (t + 1, (y, *kept)[: self.kept(t + 1)])

    def causal(self) -> Array:
        """N by the stream's own recurrence, shape (steps, steps)."""
        check_dense(self, "inverse")
        return stepped(self)

    def prefix(self, steps: int) -> Strategy:
        """The top-left block of C."""
        check_prefix(steps, self)
        if steps == self.steps:
            return self
        columns = np.array(self.columns[:steps, : min(self.bands, steps)])
        for i in range(1, columns.shape[1]):
            columns[steps - i :, i] = 0.0
        return Banded(self.name, _read_only(columns), {**self.parameters, "horizon": self.steps})

    def describe(self) -> dict[str, Any]:
        """Bands and digest, or the name alone where it determines the columns."""
        given = {} if self.name == "full_batch" else {"bands": self.bands, "sha256": digest(self.columns)}
        return {"name": self.name, "steps": self.steps, "parameters": {**self.parameters, **given}}


def _read_only(x: Array) -> Array:
    x = np.array(x)
    x.flags.writeable = False
    return x


def dense(matrix: ArrayLike) -> Strategy:
    """Strategy of any matrix C; its noise is C^-1 Z, or the optimal C^+ Z where C isn't lower-triangular.

    Its stream keeps the whole noise history.

    Args:
        matrix: C, shape (m, n), m >= n, of full column rank, n at most 8,192.

    Returns:
        The strategy.

    Raises:
        ValueError: not two-dimensional, not finite, fewer rows than columns, or a singular C.
        Unsupported: more than 8,192 steps.

    Example:
        >>> dense([[1.0, 0.0], [0.5, 1.0]]).noising()
        array([[ 1. ,  0. ],
               [-0.5,  1. ]])

    Source: arXiv 2211.06530, section 3; arXiv 2202.08312 (Denisov et al.), theorem 2.1, for adaptive gradients.
    """
    fix = "give C with at least as many rows as columns (one a step)"
    if len(shape := np.shape(matrix)) == 2 and shape[1] > MATRIX_STEPS:
        raise Unsupported(
            f"dense strategy of steps={shape[1]}: more than the {MATRIX_STEPS} up to which C may be a matrix; use a "
            "structured strategy or fewer steps"
        )
    c = _checks.matrix("matrix", matrix, fix=fix)
    if c.shape[0] < c.shape[1]:
        raise _checks.fail("matrix.shape", c.shape, "must have at least as many rows as columns", fix)
    strategy = Dense(c)
    r = strategy._r
    if not (np.diag(r) != 0.0).all():
        t = int(np.flatnonzero(np.diag(r) == 0.0)[0])
        raise _checks.fail(f"matrix[{t}, {t}]", 0.0, "must not be zero", "C must be invertible")
    return strategy


def banded(columns: ArrayLike) -> Strategy:
    """Lower-triangular banded strategy with general columns: C[j + i, j] = columns[j, i].

    Its noise follows the recurrence y_t = (z_t - sum_i C[t, t-i] y_(t-i)) / C[t, t], with bands - 1 model copies.

    Args:
        columns: column j from the diagonal down, shape (n, bands), bands <= n; columns[:, 0] not zero, entries past
            the last row (i + j >= n) zero.

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: bad shape, an entry that isn't finite, a zero on the diagonal, or an entry past the last row.

    Example:
        >>> banded([[1.0, 0.5], [1.0, 0.0]]).dense()
        array([[1. , 0. ],
               [0.5, 1. ]])

    Source: arXiv 2306.08153, section 3.
    """
    fix = "give columns of shape (steps, bands), each from the diagonal down"
    x = _checks.matrix("columns", columns, fix=fix)
    n, p = x.shape
    if p > n:
        raise _checks.fail("columns.shape", x.shape, f"must have at most steps={n} bands", fix)
    if (x[:, 0] == 0.0).any():
        j = int(np.flatnonzero(x[:, 0] == 0.0)[0])
        raise _checks.fail(f"columns[{j}, 0]", 0.0, "must not be zero", "C must be invertible")
    for i in range(1, p):
        if x[n - i :, i].any():
            j = n - i + int(np.flatnonzero(x[n - i :, i])[0])
            raise _checks.fail(f"columns[{j}, {i}]", float(x[j, i]), "lies past the last row", "set it to 0")
    return Banded("banded", x)


def full_batch(steps: int) -> Strategy:
    """The optimum of full-batch training, where every unit joins every step: C = diag((n - j + 1)^(1/4)), j = 1 .. n.

    Under FixedEpochs(n, n) and the prefix sum its RMSE is sum_j sqrt(j) / sqrt(n), the least of all factorizations.

    Args:
        steps: number of steps n.

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: steps isn't a positive integer.

    Example:
        >>> full_batch(16).dense()[0, 0]
        np.float64(2.0)

    Source: arXiv 2601.22334, theorem 4.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    return Banded("full_batch", _read_only(np.arange(steps, 0, -1.0)[:, None] ** 0.25))
