"""Balls-in-bins by brute force: mixtures in the space of the releases, integrated on a grid or drawn plainly.

Shares no code with the package: no Gram matrix beyond the plane's, no importance sampling, no bounds.
"""

from __future__ import annotations

import numpy as np
from scipy import stats


def means(c: np.ndarray, epochs: int) -> np.ndarray:
    """m_i = sum_j C[:, i + j b], one row a bin."""
    n = c.shape[1]
    b = n // epochs
    return np.array([sum(c[:, i + j * b] for j in range(epochs)) for i in range(b)])


def golden_loss(m: np.ndarray, x: np.ndarray, s: float) -> float:
    """log of the likelihood ratio of the mixture to noise alone, at release x."""
    logs = [(np.dot(row, x) - 0.5 * np.dot(row, row)) / s**2 for row in m]
    return float(np.log(np.mean(np.exp(logs))))


def two_bin_deltas(m: np.ndarray, s: float, epsilon: float, points: int = 3001) -> tuple[float, float]:
    """(delta(P || Q), delta(Q || P)) for two bins, on a grid in the plane that the two means span."""
    assert len(m) == 2
    basis, _ = np.linalg.qr(m.T)
    flat = m @ basis / s  # coordinates in units of the noise
    reach = 9.0 + np.abs(flat).max()
    t = np.linspace(-reach, reach, points)
    x, y = np.meshgrid(t, t, indexing="ij")
    cell = (t[1] - t[0]) ** 2 / (2.0 * np.pi)
    q = np.exp(-0.5 * (x * x + y * y)) * cell
    p = sum(np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2)) for a, b in flat) * cell / 2.0
    e = np.exp(epsilon)
    return float(np.maximum(p - e * q, 0.0).sum()), float(np.maximum(q - e * p, 0.0).sum())


def plain_deltas(
    m: np.ndarray, s: float, epsilon: float, count: int, seed: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """((mean, standard error) of delta(P || Q), the same of delta(Q || P)) from plain samples of releases."""
    rng = np.random.default_rng(seed)
    b, n = m.shape
    totals = np.zeros((2, 2))
    for start in range(0, count, 100_000):
        size = min(100_000, count - start)
        z = s * rng.standard_normal((size, n))
        for side, x in enumerate((z + m[rng.integers(b, size=size)], z)):
            logs = (x @ m.T - 0.5 * (m * m).sum(axis=1)) / s**2
            loss = np.log(np.exp(logs).mean(axis=1))
            value = np.maximum(-np.expm1(epsilon - loss if side == 0 else epsilon + loss), 0.0)
            totals[side] += value.sum(), (value**2).sum()
    mean = totals[:, 0] / count
    error = np.sqrt((totals[:, 1] / count - mean**2) / count)
    return (mean[0], error[0]), (mean[1], error[1])


def three_bin_deltas(square: float, epsilon: float, points: int = 1201) -> tuple[float, float]:
    """The same for three orthogonal means of squared norm `square` over the noise's variance.

    Two of the three log-normal ratios are integrated on a grid, the third in closed form.
    """
    deviation = np.sqrt(square)
    z = np.linspace(-10.0 - deviation, 10.0 + deviation, points)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    x = np.exp(deviation * z - square / 2.0)
    rest = (x[:, None] + x) / 3.0
    weights = weight[:, None] * weight

    def call(strike: np.ndarray) -> np.ndarray:
        """E (X / 3 - strike)+."""
        with np.errstate(divide="ignore", invalid="ignore"):
            d = (np.log(3.0 * strike) + square / 2.0) / deviation
        positive = stats.norm.sf(d - deviation) / 3.0 - strike * stats.norm.sf(d)
        return np.where(strike > 0.0, positive, 1.0 / 3.0 - strike)

    high, low = np.exp(epsilon), np.exp(-epsilon)
    put = call(low - rest) - (1.0 / 3.0 - (low - rest))  # E (strike - X / 3)+
    return float((weights * call(high - rest)).sum()), float(high * (weights * np.maximum(put, 0.0)).sum())
