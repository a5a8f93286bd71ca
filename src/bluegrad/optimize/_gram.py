"""Quadratic forms of A for Toeplitz noise of few bands, where A itself is no Toeplitz matrix (a schedule)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks
from bluegrad._checks import Unsupported
from bluegrad.strategy.base import DENSE_STEPS
from bluegrad.workload import Workload

Array = NDArray[np.float64]

# Most entries of the forms of all rows (400 MB).
_ENTRIES = 50_000_000


def total_form(workload: Workload, bands: int) -> Array:
    """Q with theta^T Q theta = ||A N||_F^2 for N Toeplitz with first coefficients theta, shape (bands, bands).

    Q[s, s + l] = sum_(j >= s) (A^T A)[j, j + l].

    Raises:
        Unsupported: a workload without a short state, of too many steps.
    """
    out = np.empty((bands, bands))
    for lag, diagonal in enumerate(_gram_diagonals(workload, bands)):
        tails = diagonal.sum() - np.concatenate([[0.0], np.cumsum(diagonal[: bands - lag - 1])])
        s = np.arange(bands - lag)
        out[s, s + lag] = out[s + lag, s] = tails
    return out


def row_forms(workload: Workload, bands: int) -> Array:
    """R with theta^T R_t theta = squared norm of row t of A N, shape (steps, bands, bands).

    R_t[s, s + l] = sum_(j >= s) A[t, j] A[t, j + l].

    Raises:
        ValueError: too many steps or bands to hold them all.
    """
    n = workload.steps
    if n > DENSE_STEPS or n * bands * bands > _ENTRIES:
        raise _checks.fail(
            "loss", "max_error", f"under changing rates takes steps <= {DENSE_STEPS}, steps * bands^2 <= {_ENTRIES}",
            f"give fewer bands than {bands}, loss='rmse', or constant rates",
        )  # fmt: skip
    a, out = workload.dense(), np.empty((n, bands, bands))
    for lag in range(bands):
        products = a[:, : n - lag] * a[:, lag:]
        before = np.cumsum(products[:, : bands - lag - 1], axis=1)
        tails = products.sum(axis=1)[:, None] - np.concatenate([np.zeros((n, 1)), before], axis=1)
        s = np.arange(bands - lag)
        out[:, s, s + lag] = out[:, s + lag, s] = tails
    return out


def _gram_diagonals(workload: Workload, lags: int) -> list[Array]:
    """(A^T A)[j, j + l] for l < lags, by the workload's recursion in O(n lags) where it has one."""
    if workload.init() is not None:
        return _recursive_diagonals(*state_space(workload, workload.steps), lags)
    if workload.steps > DENSE_STEPS:
        raise Unsupported(
            f"workload={workload!r}: no recursion to use, and steps={workload.steps} is more than the {DENSE_STEPS} up "
            "to which A^T A is formed; use bluegrad.PrefixSum or bluegrad.Sgd, or fewer steps"
        )
    a = workload.dense()
    return [np.diagonal(a.T @ a, lag) for lag in range(lags)]


def state_space(workload: Workload, steps: int) -> tuple[Array, Array, Array, Array]:
    """x_t = F_t x_(t-1) + g_t u_t, output h_t x_(t-1) + a_t u_t: F (n, d, d), g (n, d), h (n, d), a (n,)."""
    first = workload.init()
    assert first is not None
    d = len(first) - 1
    units = np.eye(d + 1)
    moved, outputs = np.empty((steps, d, d + 1)), np.empty((steps, d + 1))
    for t in range(steps):
        outputs[t], state = workload.step(units[0], (t, *units[1:]))
        moved[t] = state[1:]
    return moved[:, :, 1:], moved[:, :, 0], outputs[:, 1:], outputs[:, 0]


def _recursive_diagonals(f: Array, g: Array, h: Array, a: Array, lags: int) -> list[Array]:
    n, d = g.shape
    later = np.zeros((n, d, d))  # sum over outputs after t of what they take from x_t, squared
    for t in range(n - 1, 0, -1):
        later[t - 1] = np.outer(h[t], h[t]) + f[t].T @ later[t] @ f[t]
    seen = np.einsum("tij,tj->ti", later, g)
    out = [a * a + np.einsum("ti,ti->t", seen, g)]
    state = g  # row j: x_(j + l - 1) from a unit input at step j
    for lag in range(1, lags):
        state = state[: n - lag]
        output = np.einsum("ti,ti->t", h[lag:], state)
        state = np.einsum("tij,tj->ti", f[lag:], state)
        out.append(a[lag:] * output + np.einsum("ti,ti->t", seen[lag:], state))
    return out
