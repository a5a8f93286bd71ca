"""Truncated Poisson batches by brute force: every draw of a few units, densities on a grid."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np


def sums(values: list[float], rate: float, largest: int) -> dict[float, float]:
    """Probability of every sum of a batch: Poisson draws, cut to a uniformly random subset of `largest`."""
    out: dict[float, float] = {}
    for joined in product((False, True), repeat=len(values)):
        drawn = [v for v, j in zip(values, joined) if j]
        chance = rate ** len(drawn) * (1.0 - rate) ** (len(values) - len(drawn))
        subsets = list(combinations(drawn, min(largest, len(drawn))))
        for subset in subsets:
            total = round(sum(subset), 9)
            out[total] = out.get(total, 0.0) + chance / len(subsets)
    return out


def deltas(
    values: list[float], rate: float, largest: int, sigma: float, epsilon: float, steps: int, points: int = 1201
) -> tuple[float, float]:
    """(delta(P || Q), delta(Q || P)), P with all units and Q without the first, over one or two equal steps."""
    reach = sum(abs(v) for v in values) + 9.0 * sigma
    t = np.linspace(-reach, reach, points)
    cell = (t[1] - t[0]) / (sigma * np.sqrt(2.0 * np.pi))

    def law(units: list[float]) -> np.ndarray:
        one = sum(c * np.exp(-((t - s) ** 2) / (2.0 * sigma**2)) * cell for s, c in sums(units, rate, largest).items())
        return np.multiply.outer(one, one) if steps == 2 else np.asarray(one)

    p, q, e = law(values), law(values[1:]), np.exp(epsilon)
    return float(np.maximum(p - e * q, 0.0).sum()), float(np.maximum(q - e * p, 0.0).sum())
