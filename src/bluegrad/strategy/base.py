"""The interface of every strategy: C, its noising N with N C = I, and N Z as a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# A stream's state: the next step, and the arrays or tensors it still needs.
State = tuple[int, tuple[Any, ...]]


class Strategy(ABC):
    """A strategy matrix C, shape (m, n), with a noising N, shape (n, m), N C = I, of lower-triangular N N^T.

    Frozen. `dense` is the meaning; whatever else is overridden is overridden for cost, never for meaning.
    """

    steps: int

    @abstractmethod
    def dense(self) -> Array:
        """C, float64, shape (m, steps)."""

    @abstractmethod
    def prefix(self, steps: int) -> Strategy:
        """The strategy that the first `steps` steps alone amount to."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain data (JSON) that determine C: name, steps, parameters."""

    def noising(self) -> Array:
        """N, float64, shape (steps, m); row t uses only noise that exists by step t."""
        return np.asarray(np.linalg.inv(self.dense()), dtype=np.float64)

    def coefficients(self) -> Array | None:
        """Leading coefficients of C without trailing zeros where C is a Toeplitz matrix, else None."""
        return None

    def noise_coefficients(self) -> Array | None:
        """Leading coefficients of N without trailing zeros where N is a Toeplitz matrix, else None."""
        return None

    def taps(self, t: int) -> Array | None:
        """Weights of row t of N on z_t, z_(t-1), ..., where that is how a stream should form it, else None."""
        return None

    @property
    def memory(self) -> int:
        """Model copies that a stream keeps between two steps when noise can be drawn again."""
        return self.steps - 1

    def init(self) -> State:
        """State of a stream before its first step."""
        return (0, ())

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """Row t of N Z, given z = row t of Z (a number, array or tensor), and the next state.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, history = state
        check_horizon(t, self.steps)
        history = (z, *history)
        row = self.noising()[t, t::-1]
        return weighted_sum(row, history), (t + 1, history)


def check_horizon(t: int, steps: int) -> None:
    """Refuse a step past the horizon: noise past it is part of no guarantee.

    Raises:
        ValueError: t >= steps.
    """
    if t >= steps:
        raise ValueError(
            f"step={t + 1}: the mechanism ends after steps={steps}; plan it for as many steps as you train"
        )


def weighted_sum(weights: Array, terms: tuple[Any, ...]) -> Any:
    """Sum of weights[j] * terms[j], from the first to the last (the order is part of the result)."""
    total = float(weights[0]) * terms[0]
    for weight, term in zip(weights[1:], terms[1:]):
        total = total + float(weight) * term
    return total
