"""Gradients without a derivative in sight, and dense losses that take complex arguments. No code of the package."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def complex_step(function: Callable[[np.ndarray], complex], x: np.ndarray, step: float = 1e-30) -> np.ndarray:
    """Gradient of an analytic function, exact to rounding: Im f(x + i step e_j) / step."""
    out = np.empty(len(x))
    for j in range(len(x)):
        moved = x.astype(complex)
        moved[j] += 1j * step
        out[j] = function(moved).imag / step
    return out


def lower_toeplitz(coefficients: np.ndarray, n: int) -> np.ndarray:
    out = np.zeros((n, n), dtype=coefficients.dtype)
    for i, value in enumerate(coefficients[:n]):
        out += value * np.eye(n, k=-i)
    return out


def lower_banded(columns: np.ndarray) -> np.ndarray:
    n, bands = columns.shape
    out = np.zeros((n, n), dtype=columns.dtype)
    for j in range(n):
        for i in range(min(bands, n - j)):
            out[j + i, j] = columns[j, i]
    return out


def row_variances(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Squared row norms of A C^-1, analytic in C: no conjugates."""
    return ((a @ np.linalg.inv(c)) ** 2).sum(axis=1)


def log_squared(a: np.ndarray, c: np.ndarray, loss: str) -> complex:
    """Log of the mean or the last squared row norm."""
    rows = row_variances(a, c)
    return np.log(rows.mean() if loss == "rmse" else rows[-1])


def first_pattern(c: np.ndarray, b: int, k: int) -> complex:
    """Squared norm of the sum of columns 0, b, ..., (k - 1) b."""
    return (c[:, : k * b : b].sum(axis=1) ** 2).sum()
