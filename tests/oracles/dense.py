"""Slow, dense truth: matrices in full, every pattern, every sign, high precision. Shares no code with the package."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from mpmath import exp as mp_exp
from mpmath import findroot, log, mp, mpf, ncdf

mp.dps = 50
Pattern = tuple[int, ...]


def toeplitz(coefficients: Sequence[float], n: int) -> np.ndarray:
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            if i - j < len(coefficients):
                out[i, j] = coefficients[i - j]
    return out


def fixed_patterns(n: int, k: int) -> list[Pattern]:
    b = n // k
    return [tuple(range(s, n, b)) for s in range(b)]


def separated_patterns(n: int, b: int, k: int) -> list[Pattern]:
    """Every set of at most k steps with gaps of at least b, maximal or not."""
    return [
        p
        for size in range(1, min(k, n) + 1)
        for p in itertools.combinations(range(n), size)
        if all(later - earlier >= b for earlier, later in itertools.pairwise(p))
    ]


def sign_sensitivity(c: np.ndarray, patterns: Iterable[Pattern]) -> float:
    """Largest |C g| over patterns and contributions of -1, 0 and +1."""
    best = 0.0
    for pattern in patterns:
        for signs in itertools.product((-1, 0, 1), repeat=len(pattern)):
            best = max(best, float(np.linalg.norm(c[:, list(pattern)] @ np.array(signs))))
    return best


def vector_sensitivity(c: np.ndarray, patterns: Iterable[Pattern], seed: int = 0) -> float:
    """Largest Frobenius norm over patterns and vector contributions, by ascent from several starts (from below)."""
    rng = np.random.default_rng(seed)
    best = 0.0
    for pattern in patterns:
        x = c[:, list(pattern)].T @ c[:, list(pattern)]
        for _ in range(4):
            v = rng.standard_normal((len(pattern), len(pattern) + 1))
            v /= np.linalg.norm(v, axis=1, keepdims=True)
            for _ in range(250):
                # Frank-Wolfe vertex of the convex objective tr(X V V^T + shift): rows of X V + s V, normalised
                v = x @ v + 1e-3 * np.trace(x) * v if (np.linalg.eigvalsh(x)[0] < 0) else x @ v
                v /= np.linalg.norm(v, axis=1, keepdims=True)
            best = max(best, float(np.sum(x * (v @ v.T))))
    return best**0.5


def rmse(c: np.ndarray, sensitivity: float) -> float:
    b = np.tri(len(c)) @ np.linalg.inv(c)
    return float(sensitivity * np.sqrt((b**2).sum() / len(c)))


def max_error(c: np.ndarray, sensitivity: float) -> float:
    b = np.tri(len(c)) @ np.linalg.inv(c)
    return float(sensitivity * np.sqrt((b**2).sum(axis=1).max()))


def gaussian_delta(sigma: float, epsilon: float) -> mpf:
    """delta of the Gaussian mechanism, 50 digits."""
    s, e = mpf(sigma), mpf(epsilon)
    return ncdf(1 / (2 * s) - e * s) - mp_exp(e) * ncdf(-1 / (2 * s) - e * s)


def gaussian_sigma(epsilon: float, delta: float, near: float) -> mpf:
    """Smallest noise multiplier for (epsilon, delta), 50 digits, close to a first guess."""
    target = log(mpf(delta))
    bracket = (mpf(near) * mpf("0.999"), mpf(near) * mpf("1.001"))
    return findroot(lambda s: log(gaussian_delta(s, epsilon)) - target, bracket, solver="anderson")
