"""Workloads A: what the optimizer makes of the per-step gradients, a lower-triangular n x n matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bluegrad import _checks, _series

Array = NDArray[np.float64]


class Workload(ABC):
    """A lower-triangular matrix A, shape (steps, steps), on the steps' gradients."""

    steps: int

    @abstractmethod
    def dense(self) -> Array:
        """A itself, float64, shape (steps, steps): the meaning."""

    @abstractmethod
    def row_norms(self, coefficients: Array) -> Array:
        """Row norms of A T, shape (steps,), T Toeplitz with these leading coefficients, shape (p,)."""

    @abstractmethod
    def root(self, sign: int) -> Array:
        """Coefficients of A^(1/2) for sign +1 and of A^(-1/2) for sign -1, shape (steps,).

        Raises:
            ValueError: A isn't a Toeplitz matrix.
        """


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

    def row_norms(self, coefficients: Array) -> Array:
        """Row norms of A T: its coefficients are the running sums of T's."""
        out = np.zeros(self.steps)
        out[: len(coefficients)] = coefficients[: self.steps]
        return _toeplitz_row_norms(np.cumsum(out, out=out))

    def root(self, sign: int) -> Array:
        """Coefficients of (1 - x)^(-sign / 2), shape (steps,), by their two-term recurrence."""
        return power_coefficients(-0.5 * sign, 1.0, self.steps)


@dataclass(frozen=True, eq=False)
class Sgd(Workload):
    """SGD with momentum, decoupled weight decay and a schedule: row t is the model after step t.

    m_t = momentum m_(t-1) + g_t, theta_t = (1 - weight_decay) theta_(t-1) + rate_t m_t, signs aside.

    Args:
        steps: number of steps n.
        momentum: in [0, 1).
        weight_decay: shrinkage of the model a step, in [0, 1).
        learning_rates: one rate above 0 a step, shape (steps,); None is 1 throughout.

    Raises:
        ValueError: an argument out of range, or rates of another length.

    Example:
        >>> Sgd(3, momentum=0.5).dense()
        array([[1.  , 0.  , 0.  ],
               [1.5 , 1.  , 0.  ],
               [1.75, 1.5 , 1.  ]])

    Source: arXiv 2211.06530, section 4; arXiv 2405.13763, section 3.
    """

    steps: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: ArrayLike | None = None

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")
        for name in ("momentum", "weight_decay"):
            _checks.real(name, getattr(self, name), low=0.0, high=1.0, high_open=True, fix="commonly 0 to 0.99")
        if self.learning_rates is not None:
            fix = f"give one rate a step, {self.steps} of them"
            rates = _checks.vector("learning_rates", self.learning_rates, longest=self.steps, fix=fix)
            if len(rates) != self.steps:
                raise _checks.fail("len(learning_rates)", len(rates), f"must equal steps={self.steps}", fix)
            if (rates <= 0.0).any():
                raise _checks.fail("learning_rates", float(rates.min()), "must be above 0", fix)
            object.__setattr__(self, "learning_rates", rates)

    @property
    def _rates(self) -> Array:
        return np.ones(self.steps) if self.learning_rates is None else np.asarray(self.learning_rates)

    @property
    def _constant(self) -> bool:
        return bool((self._rates == self._rates[0]).all())

    def dense(self) -> Array:
        """A itself, shape (steps, steps), by the recursion."""
        return np.array(list(self._rows(np.ones(1))))

    def _rows(self, coefficients: Array) -> Iterator[Array]:
        """Rows of A T in turn, shape (steps,) each, in O(steps) memory."""
        momenta = _series.divide(coefficients, np.array([1.0, -self.momentum]), self.steps)
        row = np.zeros(self.steps)
        for t, rate in enumerate(self._rates):
            row *= 1.0 - self.weight_decay
            row[: t + 1] += rate * momenta[t::-1]
            yield row.copy()

    def row_norms(self, coefficients: Array) -> Array:
        """Row norms of A T: O(steps) where the rates are constant, else O(steps^2) in O(steps) memory."""
        if not self._constant:
            return np.array([np.linalg.norm(row) for row in self._rows(coefficients)])
        decay, momentum = 1.0 - self.weight_decay, self.momentum
        denominator = np.array([1.0, -decay - momentum, decay * momentum])
        return _toeplitz_row_norms(self._rates[0] * _series.divide(coefficients, denominator, self.steps))

    def root(self, sign: int) -> Array:
        """Coefficients of ((1 - decay x)(1 - momentum x) / rate)^(-sign / 2), shape (steps,).

        Raises:
            ValueError: the rates change, so that A isn't a Toeplitz matrix.
        """
        if not self._constant:
            raise _checks.fail(
                "learning_rates", "a schedule", "A is no Toeplitz matrix, so it has no Toeplitz root",
                "take the root of Sgd without learning_rates",
            )  # fmt: skip
        exponent = -0.5 * sign
        decay = power_coefficients(exponent, 1.0 - self.weight_decay, self.steps)
        momentum = power_coefficients(exponent, self.momentum, self.steps)
        return self._rates[0] ** (0.5 * sign) * _series.multiply(decay, momentum, self.steps)


def _toeplitz_row_norms(coefficients: Array) -> Array:
    """Row norms of a lower-triangular Toeplitz matrix, from its coefficients, shape (steps,), which are consumed."""
    np.multiply(coefficients, coefficients, out=coefficients)
    np.cumsum(coefficients, out=coefficients)
    return np.sqrt(coefficients, out=coefficients)


def power_coefficients(exponent: float, decay: float, steps: int) -> Array:
    """Coefficients of (1 - decay x)^exponent, shape (steps,): decay^t prod_(j<=t) (j - 1 - exponent) / j."""
    t = np.arange(1, steps, dtype=np.float64)
    out = np.ones(steps)
    np.cumprod((t - 1.0 - exponent) / t * decay, out=out[1:])
    return out
