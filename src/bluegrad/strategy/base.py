"""The interface of every strategy: C, its noising N with N C = I, and N Z as a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular

from bluegrad import _checks
from bluegrad._checks import Unsupported

Array = NDArray[np.float64]
# A stream's state: the next step, and the arrays or tensors it still needs.
State = tuple[int, tuple[Any, ...]]

# Largest n for which an n x n matrix is formed where no structure helps (128 MiB).
DENSE_STEPS = 4096
# Largest n of a strategy that is given as a matrix (512 MiB).
MATRIX_STEPS = 8192
# Up to this many bands of N a stream draws earlier noise again at every step; beyond, drawing costs more than
# keeping, so it keeps the noise it drew.
REPLAYED_BANDS = 16


class Strategy(ABC):
    """A strategy matrix C, shape (m, n), and a noising N, shape (n, m), with N C = I.

    Only N N^T shows in what is released, so a stream draws L Z, L lower-triangular with L L^T = N N^T: one new
    normal a step. Frozen. `dense` is the meaning; whatever else is overridden is overridden for cost only.
    """

    steps: int
    # how the strategy was found, where an optimiser found it
    optimization: Any = None

    @abstractmethod
    def dense(self) -> Array:
        """C, float64, shape (m, steps)."""

    @abstractmethod
    def prefix(self, steps: int) -> Strategy:
        """A strategy of the first `steps` releases alone: their noise has the same law, N C = I holds."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain data (JSON) that determine C: name, steps, parameters."""

    def noising(self) -> Array:
        """N, float64, shape (steps, m)."""
        return np.asarray(np.linalg.inv(self.dense()), dtype=np.float64)

    def causal(self) -> Array:
        """L, lower-triangular, shape (steps, steps), L L^T = N N^T: N itself where that is lower-triangular."""
        return self.noising()

    def noise_columns(self) -> Iterator[Array]:
        """Blocks (steps, r) of columns of a matrix M with M M^T = N N^T, for errors in little memory."""
        check_dense(self, "errors")
        yield self.causal()

    def repetition(self) -> tuple[Strategy, int]:
        """What the strategy repeats, and how often: itself once where it doesn't."""
        return self, 1

    def coefficients(self) -> Array | None:
        """Leading coefficients of C without trailing zeros where C is a Toeplitz matrix, else None."""
        return None

    def noise_coefficients(self) -> Array | None:
        """Leading coefficients of N without trailing zeros where N is a Toeplitz matrix, else None."""
        return None

    def gram_coefficients(self) -> Array | None:
        """First row of C^T C, shape (steps,), where that is a Toeplitz matrix though C isn't, else None."""
        return None

    @property
    def bands(self) -> int:
        """(C^T C)[i, j] = 0 wherever |i - j| is at least this."""
        return self.steps

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag] for i = 0 .. steps - lag - 1."""
        check_dense(self, "Gram matrix")
        c = self.dense()
        return np.asarray(np.einsum("ij,ij->j", c[:, : self.steps - lag], c[:, lag:]))

    def column_norms(self) -> Array:
        """Norms of C's columns, shape (steps,)."""
        return np.asarray(np.linalg.norm(self.dense(), axis=0))

    def taps(self, t: int) -> Array | None:
        """Row t of L from the diagonal backwards, where that is how a stream should form it, else None."""
        return None

    def kept(self, t: int) -> int:
        """How many arrays the state of `step` holds after t steps."""
        return t

    @property
    def memory(self) -> int:
        """Model copies that a stream keeps between two steps when noise can be drawn again."""
        return self.steps - 1

    @property
    def cost(self) -> tuple[int, int]:
        """Cost of a late step in model-sized operations: normals drawn, and vectors added."""
        taps = self.taps(self.steps - 1)
        if taps is None:
            return 1, 2 * self.memory
        return (len(taps), 0) if len(taps) <= REPLAYED_BANDS else (1, len(taps) - 1)

    def init(self) -> State:
        """State of a stream before its first step."""
        return (0, ())

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """Row t of L Z, given z = row t of Z (a number, array or tensor), and the next state.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, earlier = state
        check_horizon(t, self.steps)
        weights = self.taps(t)
        assert weights is not None, "a strategy without taps has a step of its own"
        used = (z, *earlier)[: len(weights)]
        return weighted_sum(weights, used), (t + 1, used[: self.kept(t + 1)])


def check_horizon(t: int, steps: int) -> None:
    """Refuse a step past the horizon: noise past it is part of no guarantee.

    Raises:
        ValueError: t >= steps.
    """
    if t >= steps:
        raise ValueError(
            f"step={t + 1}: the mechanism ends after steps={steps}; plan it for as many steps as you train"
        )


def check_prefix(steps: int, strategy: Strategy) -> None:
    """Refuse a prefix that is empty or longer than the strategy.

    Raises:
        ValueError: steps isn't within 1 .. strategy.steps.
    """
    fix = f"give at most the {strategy.steps} steps of the strategy"
    if _checks.integer("steps", steps, minimum=1, fix=fix) > strategy.steps:
        raise _checks.fail("steps", steps, f"the strategy has {strategy.steps}", fix)


def check_strategy(strategy: Any) -> None:
    """Refuse what isn't a strategy.

    Raises:
        ValueError: it isn't one.
    """
    if not isinstance(strategy, Strategy):
        raise _checks.fail("strategy", strategy, "must be a bluegrad strategy", "e.g. bluegrad.lambda_cgd(...)")


def check_dense(strategy: Strategy, purpose: str) -> None:
    """Refuse to form n x n matrices of many steps.

    Raises:
        Unsupported: more than DENSE_STEPS steps.
    """
    if strategy.steps > DENSE_STEPS:
        raise Unsupported(
            f"{purpose} of {strategy!r}: no structure to use, and steps={strategy.steps} is more than the "
            f"{DENSE_STEPS} up to which an n x n matrix is formed; use a Toeplitz strategy or fewer steps"
        )


def check_scale(name: str, size: float) -> None:
    """Refuse norms of C for which its squares leave the range of float64, or the recurrence of its noise float32's.

    Raises:
        ValueError: not within 1e-30 .. 1e30.
    """
    if not 1e-30 <= size <= 1e30:
        raise _checks.fail(name, size, "is out of range [1e-30, 1e30]: numbers would under- or overflow",
                           "scale C: only its shape matters")  # fmt: skip


def weighted_sum(weights: Array, terms: tuple[Any, ...]) -> Any:
    """Sum of weights[j] * terms[j], from the first to the last (the order is part of the result)."""
    total = float(weights[0]) * terms[0]
    for weight, term in zip(weights[1:], terms[1:]):
        total = total + float(weight) * term
    return total


def causal_inverse(c: Array) -> Array:
    """R, lower-triangular with R^T R = C^T C and a positive diagonal, for C of shape (m, n), m >= n.

    L = R^-1 then is the causal factor of the optimal noising C^+. By QR of the reversed columns, not Cholesky of
    C^T C: that would square the condition.

    Raises:
        ValueError: C hasn't full column rank (to rounding).
    """
    n = c.shape[1]
    (upper,) = qr(c[:, ::-1], mode="r", check_finite=False)
    r = np.asarray(upper[:n])[::-1, ::-1]
    r = r * np.where(np.diag(r) < 0.0, -1.0, 1.0)[:, None]
    smallest, largest = float(np.diag(r).min()), float(np.abs(r).max())
    if smallest <= n * np.finfo(np.float64).eps * largest:
        raise _checks.fail("matrix", f"of shape {c.shape}", "must have full column rank", "C must be invertible")
    return np.asarray(r)


def lower_inverse(r: Array) -> Array:
    """Inverse of a lower-triangular matrix, exactly lower-triangular."""
    return np.tril(solve_triangular(r, np.eye(len(r)), lower=True, check_finite=False))


def stepped(strategy: Strategy) -> Array:
    """L as the stream's steps on unit vectors, shape (steps, steps)."""
    out, state = np.zeros((strategy.steps, strategy.steps)), strategy.init()
    for t, unit in enumerate(np.eye(strategy.steps)):
        out[t], state = strategy.step(unit, state)
    return out
