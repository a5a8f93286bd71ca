"""Slow, dense truth: matrices in full, every pattern, every sign, high precision. Shares no code with the package."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np
from mpmath import exp as mp_exp
from mpmath import log, mp, mpf, ncdf
from mpmath import sqrt as mp_sqrt

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


def maximal(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Patterns that lie in no other: a unit that may join more steps can always do at least as much."""
    sets = {frozenset(p) for p in patterns}
    return [tuple(sorted(p)) for p in sets if not any(p < q for q in sets)]


def inverse_coefficients(coefficients: Sequence[float], n: int) -> np.ndarray:
    """Coefficients of 1 / series in rational arithmetic, rounded once: a float64 inverse loses 1e-12 and more."""
    x = [Fraction(float(v)) for v in coefficients]
    out = [1 / x[0]]
    for t in range(1, n):
        out.append(-sum(x[j] * out[t - j] for j in range(1, min(t, len(x) - 1) + 1)) / x[0])
    return np.array([float(v) for v in out])


def square_root_coefficients(coefficients: Sequence[float], n: int) -> np.ndarray:
    """Coefficients of the square root of a series that starts with 1, in rational arithmetic."""
    a = [Fraction(float(v)) for v in coefficients] + [Fraction(0)] * n
    out = [Fraction(1)]
    for t in range(1, n):
        out.append((a[t] - sum(out[j] * out[t - j] for j in range(1, t))) / 2)
    return np.array([float(v) for v in out])


def sign_sensitivity(c: np.ndarray, patterns: Iterable[Pattern]) -> float:
    """Largest |C g| over patterns and contributions of -1, 0 and +1."""
    best = 0.0
    for pattern in maximal(patterns):
        signs = np.array(list(itertools.product((-1, 0, 1), repeat=len(pattern)))).T
        best = max(best, float(np.linalg.norm(c[:, list(pattern)] @ signs, axis=0).max()))
    return best


def vector_truth(c: np.ndarray, patterns: Iterable[Pattern], gap: float = 1e-10) -> tuple[float, float]:
    """Bounds (lower, upper) on the largest Frobenius norm over patterns and vector contributions.

    Lower: contributions found by ascent. Upper: sum(y) for y with diag(y) - X positive semidefinite, which bounds
    tr(X Q) over all psd Q of unit diagonal.
    """
    pairs = [_vector_truth(c[:, list(p)].T @ c[:, list(p)], gap) for p in maximal(patterns)]
    return max(low for low, _ in pairs) ** 0.5, max(up for _, up in pairs) ** 0.5


def _vector_truth(x: np.ndarray, gap: float) -> tuple[float, float]:
    k = len(x)
    if k == 1:
        return float(x[0, 0]), float(x[0, 0])
    off = x - np.diag(np.diag(x))
    rng = np.random.default_rng(0)
    low, up = 0.0, np.inf
    for _ in range(3):
        v = rng.standard_normal((k, k + 1))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        for sweep in range(1, 20_001):
            for i in range(k):
                pull = off[i] @ v
                if (length := np.linalg.norm(pull)) > 0:
                    v[i] = pull / length
            if sweep % 50 == 0:
                y = np.diag(x) + np.linalg.norm(off @ v, axis=1)
                shift = max(0.0, -float(np.linalg.eigvalsh(np.diag(y) - x)[0]))
                low, up = max(low, float((x * (v @ v.T)).sum())), min(up, float(y.sum() + k * shift))
                if up - low <= gap * up:
                    return low, up
    return low, up


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


def gaussian_sigma(epsilon: float, delta: float) -> mpf:
    """Smallest noise multiplier for (epsilon, delta), by bisection from a bracket that knows no answer."""
    return _bisect(lambda s: gaussian_delta(s, epsilon) - mpf(delta), mpf("1e-6"), mpf("1e6"))


def gaussian_epsilon(sigma: float, delta: float) -> mpf:
    """Smallest epsilon >= 0 at delta, by bisection."""
    if gaussian_delta(sigma, 0) <= mpf(delta):
        return mpf(0)
    return _bisect(lambda e: gaussian_delta(sigma, e) - mpf(delta), mpf("1e-9"), mpf("1e6"))


def _bisect(excess: Callable[[mpf], mpf], low: mpf, high: mpf) -> mpf:
    """Upper end of the bracket of a decreasing function's root, to 25 digits; halves the logarithm."""
    assert excess(low) > 0 >= excess(high)
    for _ in range(90):
        middle = mp_sqrt(low * high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def poisson_step_delta(sigma: float, rate: float, epsilon: float) -> mpf:
    """delta of one Poisson-sampled Gaussian step, add-or-remove: rate * delta_Gauss(log(1 + (e^eps - 1)/rate)).

    That is the removal direction, the larger of the two (Zhu and Wang 2019); no numerical convolution in it.
    """
    q = mpf(rate)
    return q * gaussian_delta(sigma, log(1 + (mp_exp(mpf(epsilon)) - 1) / q))
