"""Workloads A: what the optimizer makes of the per-step gradients, a lower-triangular n x n matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from bluegrad import _checks, _series

Array = NDArray[np.float64]
State = tuple[Any, ...]


class Workload(ABC):
    """A lower-triangular matrix A, shape (steps, steps), of non-zero diagonal, on the steps' gradients.

    `dense` is the meaning; everything else is overridden for cost only.
    """

    steps: int

    @abstractmethod
    def dense(self) -> Array:
        """A itself, float64, shape (steps, steps): the meaning."""

    def apply(self, x: Array) -> Array:
        """A x, x of shape (steps,) or (steps, columns)."""
        return np.asarray(self.dense() @ x)

    def apply_transpose(self, x: Array) -> Array:
        """A^T x, x of shape (steps,) or (steps, columns)."""
        return np.asarray(self.dense().T @ x)

    def solve(self, x: Array) -> Array:
        """A^-1 x, x of shape (steps,) or (steps, columns)."""
        return np.asarray(solve_triangular(self.dense(), x, lower=True))

    def coefficients(self) -> Array | None:
        """Leading coefficients of A, shape (steps,), where it is a Toeplitz matrix, else None."""
        return None

    def row_norms(self, coefficients: Array) -> Array:
        """Row norms of A T, shape (steps,), T Toeplitz with these leading coefficients, shape (p,)."""
        a = self.coefficients()
        if a is None:
            return np.array([np.linalg.norm(row) for row in self._rows(coefficients)])
        return toeplitz_row_norms(_series.multiply(a, coefficients, self.steps))

    def _rows(self, coefficients: Array) -> Iterator[Array]:
        """Rows of A T in turn, shape (steps,) each: row t is T^T a_t."""
        for row in self.dense():
            yield np.convolve(row[::-1], coefficients)[: self.steps][::-1]

    def repeated(self, row_norms: Callable[[Workload], Array], steps: int) -> Array | None:
        """Row norms of A (I (x) L), shape (steps of A,), where those of one repetition tell them, else None.

        Args:
            row_norms: row norms of A' L for a workload A' over one repetition.
            steps: steps of one repetition.
        """
        return None

    def root(self, sign: int) -> Array:
        """Coefficients of A^(1/2) for sign +1 and of A^(-1/2) for sign -1, shape (steps,).

        Raises:
            ValueError: A isn't a Toeplitz matrix, or its diagonal is negative.
        """
        a = self.coefficients()
        if a is None:
            raise _checks.fail(
                "workload", self, "is no Toeplitz matrix, so it has no Toeplitz root",
                "take the root of a workload without schedule, such as bluegrad.PrefixSum(steps)",
            )  # fmt: skip
        if a[0] < 0.0:
            raise _checks.fail("A[0, 0]", float(a[0]), "must be positive for a real root", "use -A")
        inverse = _series.inverse_root(a, self.steps)
        return inverse if sign < 0 else _series.multiply(a, inverse, self.steps)

    def init(self) -> State | None:
        """State before the first step where A is a recursion of short state, else None."""
        return None

    def step(self, gradient: Any, state: State) -> tuple[Any, State]:
        """Row t of A G from row t of G, and the next state."""
        raise NotImplementedError


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

    def apply(self, x: Array) -> Array:
        """A x: running sums."""
        return np.cumsum(x, axis=0)

    def apply_transpose(self, x: Array) -> Array:
        """A^T x: running sums from the end."""
        return np.cumsum(x[::-1], axis=0)[::-1]

    def solve(self, x: Array) -> Array:
        """A^-1 x: differences."""
        return np.diff(x, axis=0, prepend=np.zeros_like(x[:1]))

    def repeated(self, row_norms: Callable[[Workload], Array], steps: int) -> Array:
        """Every repetition starts from the last sum of the one before."""
        once = row_norms(PrefixSum(steps)) ** 2
        return np.sqrt(np.arange(self.steps // steps)[:, None] * once[-1] + once).reshape(-1)

    def coefficients(self) -> Array:
        """Ones."""
        return np.ones(self.steps)

    def init(self) -> State:
        """The sum so far."""
        return (0, 0.0)

    def step(self, gradient: Any, state: State) -> tuple[Any, State]:
        """Add one gradient."""
        t, total = state
        total = total + gradient
        return total, (t + 1, total)

    def row_norms(self, coefficients: Array) -> Array:
        """Row norms of A T: its coefficients are the running sums of T's."""
        out = np.zeros(self.steps)
        out[: len(coefficients)] = coefficients[: self.steps]
        return toeplitz_row_norms(np.cumsum(out, out=out))

    def root(self, sign: int) -> Array:
        """Coefficients of (1 - x)^(-sign / 2), shape (steps,), by their two-term recurrence."""
        return power_coefficients(-0.5 * sign, 1.0, self.steps)


@dataclass(frozen=True, eq=False)
class DenseWorkload(Workload):
    """Any lower-triangular matrix of non-zero diagonal as workload: your own optimizer, written out.

    Args:
        matrix: A, shape (steps, steps); row t is what is released at step t, as a function of the gradients.

    Raises:
        ValueError: not square, not finite, not lower-triangular, or a zero on the diagonal.

    Example:
        >>> DenseWorkload([[1.0, 0.0], [0.5, 1.0]]).apply(np.array([1.0, 1.0]))
        array([1. , 1.5])

    Source: arXiv 2211.06530, section 1.
    """

    matrix: ArrayLike

    def __post_init__(self) -> None:
        fix = "give A with A[t, s] = weight of step s's gradient in what is released at step t >= s"
        a = _checks.matrix("matrix", self.matrix, fix=fix)
        if a.shape[0] != a.shape[1]:
            raise _checks.fail("matrix.shape", a.shape, "must be square", fix)
        if np.triu(a, 1).any():
            t, s = (int(i[0]) for i in np.nonzero(np.triu(a, 1)))
            raise _checks.fail(f"matrix[{t}, {s}]", float(a[t, s]), "must be 0: A must be lower-triangular", fix)
        if (np.diag(a) == 0.0).any():
            t = int(np.flatnonzero(np.diag(a) == 0.0)[0])
            raise _checks.fail(f"matrix[{t}, {t}]", 0.0, "the diagonal must not be zero", fix)
        object.__setattr__(self, "matrix", a)

    def __repr__(self) -> str:
        return f"DenseWorkload(steps={self.steps})"

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return len(np.asarray(self.matrix))

    def dense(self) -> Array:
        """A itself, read-only."""
        return np.asarray(self.matrix)

    def coefficients(self) -> Array | None:
        """The first column where every diagonal is constant."""
        a = self.dense()
        return a[:, 0] if (a[1:, 1:] == a[:-1, :-1]).all() else None


def toeplitz_row_norms(coefficients: Array) -> Array:
    """Row norms of a lower-triangular Toeplitz matrix, from its coefficients, shape (steps,), which are consumed."""
    np.multiply(coefficients, coefficients, out=coefficients)
    np.cumsum(coefficients, out=coefficients)
    return np.sqrt(coefficients, out=coefficients)


def power_coefficients(exponent: float, decay: Any, steps: int) -> Array:
    """Coefficients of (1 - decay x)^exponent, shape (steps,): decay^t prod_(j<=t) (j - 1 - exponent) / j."""
    t = np.arange(1, steps, dtype=np.float64)
    out = np.ones(steps, dtype=np.result_type(np.float64, decay))
    np.cumprod((t - 1.0 - exponent) / t * decay, out=out[1:])
    return out
