"""The multi-epoch optimum under other constraints: dual ascent with multipliers bounded below; see `_dual`.

"signs": contributions +1 or -1 alone, all of them: U is a sum of v_u u u^T, v_u >= 0. "nonnegative": X_ij >= 0
everywhere: U_ij <= 0 between patterns, in addition to what `_dual` has. Minimised is log sum v - 2 log S, which no
common factor of U changes, by L-BFGS on the free variables with a projected, backtracking line search: U must stay
positive definite, and the loss has an infinite slope towards where it isn't.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bluegrad.optimize._dual import Best, Problem, Progress, blocks_of, certify, respond, separate

Array = NDArray[np.float64]

_ITERATIONS = 5000
_PATIENCE = 400
_MEMORY = 20
_ARMIJO = 1e-4
_SHORTEST = 1e-14
# Largest change of a variable in the first step, when no curvature is known.
_FIRST = 0.1
# Least root of v_u, of an average 1: keeps U positive definite, and the bound a bound.
_LEAST = 1e-5


class Dual(ABC):
    """How variables z >= lower make U, and X a feasible X."""

    lower: Array

    @abstractmethod
    def multiplier(self, z: Array) -> tuple[Array, float]:
        """U in blocks, shape (blocks, k, k), and sum v."""

    @abstractmethod
    def gradient(self, z: Array, x: Array) -> Array:
        """Of sum v - tr(X U) with respect to z, X fixed, shape (n, n)."""

    @abstractmethod
    def repair(self, x: Array) -> Array:
        """A feasible X near x, definiteness aside; x may be changed."""


class Signs(Dual):
    """All sign vectors u, up to a common sign, on every pattern: z holds the roots of v_u."""

    def __init__(self, task: Problem) -> None:
        k, self.times = task.times, task.times
        bits = np.arange(2 ** (k - 1))[:, None] >> np.arange(k) & 1
        self.signs = 1.0 - 2.0 * bits  # (2^(k-1), k), last sign +
        self.shape = (task.patterns, len(self.signs))
        self.lower = np.full(task.patterns * len(self.signs), _LEAST)

    def start(self) -> Array:
        """All alike: U is a multiple of the identity."""
        return np.ones_like(self.lower)

    def multiplier(self, z: Array) -> tuple[Array, float]:
        """sum_u v_u u u^T on every pattern."""
        v = (z * z).reshape(self.shape)
        return np.matmul(self.signs.T * v[:, None, :], self.signs), float(v.sum())

    def _squares(self, x: Array) -> Array:
        """u^T X u, shape (patterns, 2^(k-1))."""
        return np.einsum("pmi,mi->pm", np.matmul(self.signs, blocks_of(x, self.times)), self.signs)

    def gradient(self, z: Array, x: Array) -> Array:
        """2 z (1 - u^T X u)."""
        return np.asarray(2.0 * z * (1.0 - self._squares(x)).ravel())

    def repair(self, x: Array) -> Array:
        """Every pattern scaled until its largest u^T X u is 1."""
        scale = np.repeat(1.0 / np.sqrt(self._squares(x).max(axis=1)), self.times)
        return np.asarray(x * scale[:, None] * scale)


class Nonnegative(Dual):
    """X_ij >= 0: z holds log v, U_ij / v on pairs of one pattern, and -U_ij / (v_i v_j)^(1/2) >= 0 elsewhere."""

    def __init__(self, task: Problem) -> None:
        self.times, self.b = task.times, task.patterns
        n = self.b * self.times
        row, column = np.tril_indices(n, -1)
        same = row // self.times == column // self.times
        self.row, self.column = np.r_[row[same], row[~same]], np.r_[column[same], column[~same]]
        self.sign = np.where(np.arange(len(row)) < same.sum(), 1.0, -1.0)
        self.lower = np.r_[np.full(self.b + int(same.sum()), -np.inf), np.zeros(int((~same).sum()))]

    def start(self, factor: Array) -> Array:
        """The U of `_dual.solve`, shape (patterns, k, k) of factors: zero between patterns."""
        v = factor[:, 0, 0] ** 2
        unit = np.matmul(factor, factor.transpose(0, 2, 1)) / v[:, None, None]
        pairs = self.b * self.times * (self.times - 1) // 2
        row, column = self.row[:pairs], self.column[:pairs]
        inside = unit[row // self.times, row % self.times, column % self.times]
        return np.r_[np.log(v / v.mean()), inside, np.zeros(len(self.row) - pairs)]

    def multiplier(self, z: Array) -> tuple[Array, float]:
        """U as one block."""
        with np.errstate(over="ignore"):  # then not finite, and refused
            v = np.exp(z[: self.b])
        root = np.sqrt(np.repeat(v, self.times))
        u = np.diag(root * root)
        u[self.row, self.column] = self.sign * z[self.b :] * root[self.row] * root[self.column]
        u[self.column, self.row] = u[self.row, self.column]
        return u[None], float(v.sum())

    def gradient(self, z: Array, x: Array) -> Array:
        """By log v: v - half of what its rows and columns of tr(X U) are; by the others: -2 X_ij dU_ij."""
        u, _ = self.multiplier(z)
        root = np.sqrt(np.diag(u[0]))
        by_level = np.exp(z[: self.b]) - (x * u[0]).sum(axis=1).reshape(self.b, self.times).sum(axis=1)
        scale = self.sign * root[self.row] * root[self.column]
        return np.r_[by_level, -2.0 * scale * x[self.row, self.column]]

    def repair(self, x: Array) -> Array:
        """Negative entries set to zero, and `separate`."""
        return separate(np.maximum(x, 0.0), self.times)


def ascend(task: Problem, dual: Dual, z: Array, tolerance: float, progress: Progress | None) -> Best:
    """Certificates of at most this gap, or the best that could be had, from a start z."""
    best = Best(np.eye(0))
    latest: list[Array] = []

    def objective(z: Array) -> tuple[float, Array]:
        u, total = dual.multiplier(z)
        try:
            if not np.isfinite(u).all():
                return np.inf, z
            root, x = respond(task.gram, np.asarray(np.linalg.cholesky(u), dtype=np.float64))
        except np.linalg.LinAlgError:
            return np.inf, z
        if not root > 0.0 or not np.isfinite(x).all():
            return np.inf, z
        x *= total / root  # the response to U (root / total)^2, the best on this ray
        latest[:] = [x]
        best.dual = max(best.dual, root**2 / total)
        return float(np.log(total) - 2.0 * np.log(root)), dual.gradient(z, x) / total

    reached, waited = 1.0, 0

    def enough() -> bool:
        nonlocal reached, waited
        best.iterations += 1
        certify(best, task.gram, dual.repair(latest[0]), least=2.0**-6)
        if progress is not None:
            progress(best.iterations, best.primal, best.gap)
        waited += 1
        if best.gap < 0.5 * reached:
            reached, waited = best.gap, 0
        return best.gap <= tolerance or waited >= _PATIENCE

    minimise(objective, z, dual.lower, enough)
    return best


def minimise(
    objective: Callable[[Array], tuple[float, Array]], z: Array, lower: Array, enough: Callable[[], bool]
) -> Array:
    """Projected L-BFGS for z >= lower, until `enough` or no descent is left.

    Args:
        objective: value and gradient; an infinite value outside its domain, in which z lies.
        z: start, shape (variables,).
        lower: bounds, -inf where there is none.
        enough: asked after every step, the start included.

    Returns:
        The last iterate.
    """
    value, gradient = objective(z)
    pairs: list[tuple[Array, Array]] = []
    for _ in range(_ITERATIONS):
        if enough():
            break
        free = (z > lower) | (gradient < 0.0)
        direction = -_two_loops(np.where(free, gradient, 0.0), pairs, free)
        if not pairs or direction @ gradient >= 0.0:
            pairs = []
            largest = float(np.abs(gradient[free]).max(initial=0.0))
            direction = np.where(free, -gradient, 0.0) * (_FIRST / largest if largest > 0.0 else 0.0)
        share = 1.0
        while True:
            new = np.maximum(z + share * direction, lower)
            new_value, new_gradient = objective(new)
            if new_value <= value + _ARMIJO * float(gradient @ (new - z)):
                break
            share *= 0.5 if np.isfinite(new_value) else 0.2
            if share < _SHORTEST:
                break
        if share < _SHORTEST:
            if not pairs:
                break
            pairs = []
            objective(z)
            continue
        s, y = new - z, new_gradient - gradient
        if s @ y > 1e-12 * np.linalg.norm(s) * np.linalg.norm(y):
            pairs = [*pairs[-_MEMORY + 1 :], (s, y)]
        z, value, gradient = new, new_value, new_gradient
    return z


def _two_loops(gradient: Array, pairs: list[tuple[Array, Array]], free: NDArray[np.bool_]) -> Array:
    """L-BFGS inverse Hessian on the free variables times the gradient, zero on the others."""
    usable = [(s, y) for s, y in ((s * free, y * free) for s, y in pairs) if s @ y > 1e-14 * (y @ y)]
    out, shares = gradient.copy(), []
    for s, y in reversed(usable):
        shares.append((s @ out) / (s @ y))
        out -= shares[-1] * y
    if usable:
        s, y = usable[-1]
        out *= (s @ y) / (y @ y)
    for (s, y), share in zip(usable, reversed(shares)):
        out += s * (share - (y @ out) / (s @ y))
    return out
