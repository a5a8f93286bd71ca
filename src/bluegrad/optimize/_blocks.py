"""Row variances of B = A C^-1 for banded C and their gradient, in O(n bands) memory, block by block of rows.

A^-1 has few bands for the prefix sum and for SGD, schedules included, so W = C A^-1 has few bands too, and B = W^-1.
With y = B z: block i of y is U_i z_i + V_i s_(i-1), U_i = W_ii^-1, V_i = -U_i W_(i,i-1), s the last rows of the block
before. All U_i and V_i are formed at once; only the covariances S_i of s_i follow one another.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bluegrad._checks import Unsupported
from bluegrad.strategy.base import DENSE_STEPS
from bluegrad.workload import Workload

Array = NDArray[np.float64]

# Rows of a block, where the bands don't ask for more: the least time for few bands.
_ROWS = 32
# Relative accuracy to which a banded matrix must undo A to be taken for its inverse.
_INVERSE = 1e-8


class Forward(NamedTuple):
    """What a pass forwards leaves to the pass backwards; shapes (blocks, rows, ...)."""

    variances: Array  # (steps,)
    u: Array
    v: Array
    covariances: Array  # S_(i-1), (blocks, r, r)


def inverse_bands(workload: Workload) -> Array:
    """A^-1 by columns, shape (steps, d + 1): entry [j, i] is A^-1[j + i, j]. d is 1 or 2 where that is possible.

    Raises:
        Unsupported: A^-1 has more bands, and n x n matrices would be too large.
    """
    n = workload.steps
    probe = np.cos(np.arange(n, dtype=np.float64))
    for d in (1, 2):
        combs = (np.arange(n)[:, None] % (d + 1) == np.arange(d + 1)).astype(np.float64)
        solved = np.concatenate([workload.solve(combs), np.zeros((d, d + 1))])
        j = np.arange(n)
        bands = np.stack([solved[j + i, j % (d + 1)] for i in range(d + 1)], axis=1)
        undone = workload.apply(banded_product(bands, probe))
        if np.abs(undone - probe).max() <= _INVERSE:
            return bands
    if n > DENSE_STEPS:
        raise Unsupported(
            f"workload={workload!r}: A^-1 has more than 3 bands, and steps={n} is more than the {DENSE_STEPS} up to "
            "which it is formed; use bluegrad.PrefixSum or bluegrad.Sgd, or fewer steps"
        )
    full = np.concatenate([workload.solve(np.eye(n)), np.zeros((n, n))])
    return np.stack([full[i : i + n].diagonal() for i in range(n)], axis=1)


def banded_product(bands: Array, x: Array) -> Array:
    """M x for M[j + i, j] = bands[j, i]."""
    out = bands[:, 0] * x
    for i in range(1, bands.shape[1]):
        out[i:] += (bands[:, i] * x)[: len(x) - i]
    return np.asarray(out)


class BlockedVariances:
    """Variances of the rows of A C^-1, C banded by columns of shape (steps, bands), and their gradient.

    Args:
        workload: A.
        bands: bands of C.
    """

    def __init__(self, workload: Workload, bands: int) -> None:
        self.inverse = inverse_bands(workload)
        self.steps, self.bands = workload.steps, bands
        self.reach = min(bands + self.inverse.shape[1] - 2, self.steps - 1)  # r: bands of W below its diagonal
        self.rows = min(max(_ROWS, self.reach), self.steps)
        self.blocks = -(-self.steps // self.rows)

    @cached_property
    def _inside(self) -> tuple[Array, Array, Array]:
        """Row, column and band of the entries of W within a diagonal block."""
        column, band = np.meshgrid(np.arange(self.rows), np.arange(self.reach + 1), indexing="ij")
        keep = column + band < self.rows
        return (column + band)[keep], column[keep], band[keep]

    @cached_property
    def _below(self) -> tuple[Array, Array, Array]:
        """The same for a block's last `reach` columns and the rows of the block after."""
        column, band = np.meshgrid(np.arange(self.rows), np.arange(self.reach + 1), indexing="ij")
        keep = column + band >= self.rows
        return (column + band)[keep] - self.rows, column[keep], band[keep]

    def _product(self, columns: Array) -> Array:
        """W = C A^-1 by columns, in blocks, shape (blocks, rows, reach + 1); ones on the diagonal past the horizon."""
        n, out = self.steps, np.zeros((self.blocks * self.rows, self.reach + 1))
        for i in range(self.inverse.shape[1]):
            width = min(self.bands, self.reach + 1 - i)
            out[: n - i, i : i + width] += self.inverse[: n - i, i, None] * columns[i:, :width]
        out[n:, 0] = 1.0
        # entries past the last row
        for k in range(1, self.reach + 1):
            out[n - k : n, k] = 0.0
        return out.reshape(self.blocks, self.rows, -1)

    def forward(self, columns: Array) -> Forward:
        """Variances of all rows for C of these columns."""
        w, m, r = self._product(columns), self.rows, self.reach
        diagonal = np.zeros((self.blocks, m, m))
        row, column, band = self._inside
        diagonal[:, row, column] = w[:, column, band]
        u = np.tril(np.linalg.inv(diagonal))
        v = np.zeros((self.blocks, m, r))
        row, column, band = self._below
        v[1:, row, column - (m - r)] = w[:-1, column, band]
        v = -u @ v
        last_u, last_v = u[:, m - r :], v[:, m - r :]
        noise = last_u @ last_u.transpose(0, 2, 1)
        covariances = np.zeros((self.blocks, r, r))
        for i in range(1, self.blocks):
            covariances[i] = noise[i - 1] + last_v[i - 1] @ covariances[i - 1] @ last_v[i - 1].T
        variances = (u * u).sum(axis=2) + ((v @ covariances) * v).sum(axis=2)
        return Forward(variances.reshape(-1)[: self.steps], u, v, covariances)

    def backward(self, forward: Forward, weights: Array) -> Array:
        """Gradient of weights . variances in the columns, shape (steps, bands)."""
        _, u, v, covariances = forward
        m, r = self.rows, self.reach
        omega = np.zeros(self.blocks * m)
        omega[: self.steps] = weights
        omega = omega.reshape(self.blocks, m)
        last_v = v[:, m - r :]
        direct = v.transpose(0, 2, 1) @ (omega[:, :, None] * v)
        later = np.zeros((self.blocks, r, r))  # gradient in S_i of all that follows
        for i in range(self.blocks - 1, 0, -1):
            later[i - 1] = direct[i] + last_v[i].T @ later[i] @ last_v[i]
        weighted = u.transpose(0, 2, 1) * omega[:, None, :]  # U^T Omega
        weighted[:, :, m - r :] += u[:, m - r :].transpose(0, 2, 1) @ later
        shared = v @ covariances
        inside = weighted @ (u @ u.transpose(0, 2, 1) + shared @ v.transpose(0, 2, 1))
        below = weighted @ shared
        gradient = np.zeros((self.blocks, m, r + 1))
        row, column, band = self._inside
        gradient[:, column, band] = -2.0 * inside[:, row, column]
        row, column, band = self._below
        gradient[:-1, column, band] = -2.0 * below[1:, row, column - (m - r)]
        return self._product_transpose(gradient.reshape(-1, r + 1)[: self.steps])

    def _product_transpose(self, gradient: Array) -> Array:
        n, out = self.steps, np.zeros((self.steps, self.bands))
        for k in range(1, self.reach + 1):
            gradient[n - k :, k] = 0.0
        for i in range(self.inverse.shape[1]):
            width = min(self.bands, self.reach + 1 - i)
            out[i:, :width] += self.inverse[: n - i, i, None] * gradient[: n - i, i : i + width]
        return out
