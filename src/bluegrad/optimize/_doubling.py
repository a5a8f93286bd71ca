"""Sums over the impulse response of a linear recursion, by doubling: O(log n) products of small matrices.

x_t = F x_(t-1) + g u_t, b_t = h F^t g. With P_m = sum_(t<m) F^t g g^T (F^t)^T and T_m = P_1 + ... + P_m:
sum_(t<n) b_t^2 = h P_n h^T and sum_(t<n) (n - t) b_t^2 = h T_n h^T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Energy(NamedTuple):
    """A weighted sum of b_t^2 and its gradients in F, g and h."""

    value: float
    in_transition: Array
    in_input: Array
    in_output: Array


def energy(transition: Array, entry: Array, output: Array, steps: int, *, running: bool) -> Energy:
    """sum_(t<n) b_t^2, or sum_(t<n) (n - t) b_t^2 if `running`, with the gradient by the recursion backwards.

    Args:
        transition: F, shape (d, d).
        entry: g, shape (d,).
        output: h, shape (d,).
        steps: n, at least 1.
        running: whether the running sums are summed.
    """
    first = np.outer(entry, entry)
    m, power, p, t = 1, transition, first, first
    past: list[tuple[int, Array, Array, Array]] = []
    for bit in bin(steps)[3:]:
        past.append((m, power, p, t))
        t = t + m * p + power @ t @ power.T
        p = p + power @ p @ power.T
        power, m = power @ power, 2 * m
        if bit == "1":
            past.append((0, power, p, t))
            p = first + transition @ p @ transition.T
            t = t + p
            power, m = power @ transition, m + 1
    weights, seen = np.outer(output, output), (t if running else p) @ output
    in_p, in_t = (np.zeros_like(weights), weights) if running else (weights, np.zeros_like(weights))
    in_power, in_first, in_transition = np.zeros_like(weights), np.zeros_like(weights), np.zeros_like(weights)
    for m, power, p, t in reversed(past):
        if m == 0:
            in_p = in_p + in_t
            in_first += in_p
            in_transition += 2.0 * in_p @ transition @ p + power.T @ in_power
            in_power = in_power @ transition.T
            in_p = transition.T @ in_p @ transition
        else:
            in_power = in_power @ power.T + power.T @ in_power + 2.0 * (in_p @ power @ p + in_t @ power @ t)
            in_p = in_p + m * in_t + power.T @ in_p @ power
            in_t = in_t + power.T @ in_t @ power
    in_first += in_p + in_t
    return Energy(float(output @ seen), in_transition + in_power, 2.0 * in_first @ entry, 2.0 * seen)


def geometric(z: Array, terms: int) -> tuple[Array, Array]:
    """sum_(r < terms) z^r for z >= 0, and its derivative: sums of positive terms only, so exact also for z near 1."""
    value, slope, power = np.zeros_like(z), np.zeros_like(z), np.ones_like(z)
    length = 0
    for bit in bin(terms)[2:]:
        # power is z^length; that of z^(length - 1) would be 0 / 0 at z = 0
        before = np.divide(power, z, out=np.zeros_like(z), where=z > 0.0) if length > 1 else np.ones_like(z) * length
        slope = slope * (1.0 + power) + value * length * before
        value = value * (1.0 + power)
        power, length = power * power, 2 * length
        if bit == "1":
            slope = value + z * slope
            value = 1.0 + z * value
            power, length = power * z, length + 1
    return value, slope
