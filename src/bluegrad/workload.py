"""Workloads A: what the optimizer makes of the per-step gradients, a lower-triangular n x n matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks

Array = NDArray[np.float64]


class Workload(ABC):
    """A lower-triangular matrix A, shape (steps, steps), that is a Toeplitz matrix."""

    steps: int

    @abstractmethod
    def dense(self) -> Array:
        """A itself, float64, shape (steps, steps): the meaning."""

    @abstractmethod
    def product(self, coefficients: Array) -> Array:
        """First column of A T, shape (steps,), T Toeplitz with these leading coefficients, shape (p,)."""

    @abstractmethod
    def root(self, sign: int) -> Array:
        """Coefficients of A^(1/2) for sign +1 and of A^(-1/2) for sign -1, shape (steps,)."""


@dataclass(frozen=True)
class PrefixSum(Workload):
    """The prefix-sum workload A[i, j] = 1 for j <= i: plain SGD up to its learning rate.

    Args:
        steps: number of steps n.

    Raises:
        ValueError: steps isn't a positive integer.

    Example:
        >>> PrefixSum(3).dense()
        array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]])

    Source: arXiv 2211.06530, section 1.
    """

    steps: int

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")

    def dense(self) -> Array:
        """A itself: ones on and below the diagonal, shape (steps, steps)."""
        return np.tri(self.steps)

    def product(self, coefficients: Array) -> Array:
        """First column of A T: the running sum of T's coefficients, shape (steps,)."""
        out = np.zeros(self.steps)
        out[: len(coefficients)] = coefficients[: self.steps]
        return np.cumsum(out, out=out)

    def root(self, sign: int) -> Array:
        """Coefficients of (1 - x)^(-sign / 2), shape (steps,), by their two-term recurrence."""
        return power_coefficients(-0.5 * sign, 1.0, self.steps)


def power_coefficients(exponent: float, decay: float, steps: int) -> Array:
    """Coefficients of (1 - decay x)^exponent, shape (steps,): decay^t prod_(j<=t) (j - 1 - exponent) / j."""
    t = np.arange(1, steps, dtype=np.float64)
    out = np.ones(steps)
    np.cumprod((t - 1.0 - exponent) / t * decay, out=out[1:])
    return out
