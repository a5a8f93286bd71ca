"""The multi-epoch optimum: min tr(V X^-1), V = A^T A, over Gram matrices X = C^T C of sensitivity 1.

Steps are ordered by pattern: row p k + j is step p + j b, so that what participates together is a block. The dual
variable U is positive definite with a constant diagonal v_p on pattern p's block, and whatever signs of its other
entries the constraints on X leave. Its Lagrangian is least at X with X U X = V, and every U proves
tr(V X^-1) >= S^2 / sum_p v_p, S = tr (U^(1/2) V U^(1/2))^(1/2). Source: arXiv 2211.06530, section 3.

Here U is zero between patterns: the multiplier of X_ij = 0 on pairs of one pattern, exact for contributions that are
vectors. The same U solve X_ij >= 0 on pairs: its multiplier W >= 0 makes U_ij = v_p - W_ij, and entries of a positive
definite matrix are below its diagonal anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.linalg.lapack import dpotrf, dpotri

Array = NDArray[np.float64]
# Called with the iteration, the total loss tr(V X^-1) found so far and its certified relative gap.
Progress = Callable[[int, float, float], None]
# From flat coordinates of U to its bound and what else came of it.
Answer = Callable[[Array], tuple[float, Array]]

_ITERATIONS = 1000
# Given up when the gap hasn't halved within so many iterations.
_PATIENCE = 60
# Iterates that an extrapolation combines.
_MEMORY = 12
# Singular directions of an extrapolation below this share of its squared scale are left out.
_RIDGE = 1e-10
# Coarse problems go down to about this many steps: solved in no time.
_COARSEST = 48
# Shares of its diagonal that are tried in a mixture with X.
MIXTURES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 0.9)
# An iterate whose bound falls short of the best by more than this share is dropped.
_FALL = 1e-3


@dataclass(frozen=True)
class Problem:
    """V, shape (n, n), rows and columns by pattern, and the number of participations k of a pattern."""

    gram: Array
    times: int

    @property
    def patterns(self) -> int:
        """Number of patterns b = n / k."""
        return len(self.gram) // self.times


@dataclass
class Best:
    """The best certificates so far: a feasible X (by pattern), its loss, and a bound below every loss."""

    x: Array
    primal: float = np.inf
    dual: float = 0.0
    iterations: int = 0

    @property
    def gap(self) -> float:
        """(primal - dual) / primal, 1 as long as there is no primal."""
        return 1.0 - self.dual / self.primal

    def offer(self, x: Array, primal: float) -> None:
        """Keep x if it is better."""
        if primal < self.primal:
            self.x, self.primal = x, primal


def problem(gram: Array, times: int) -> Problem:
    """V = A^T A of the steps in order, reordered by pattern."""
    n = len(gram)
    b = n // times
    by_pattern = gram.reshape(times, b, times, b).transpose(1, 0, 3, 2)
    return Problem(np.ascontiguousarray(by_pattern).reshape(n, n), times)


def in_order(x: Array, times: int) -> Array:
    """The inverse of `problem`: by pattern to steps in order."""
    n = len(x)
    b = n // times
    return np.ascontiguousarray(x.reshape(b, times, b, times).transpose(1, 0, 3, 2)).reshape(n, n)


def respond(gram: Array, factor: Array) -> tuple[float, Array]:
    """S = tr (H^T V H)^(1/2), not above the truth, and X with X U X = V, for U = H H^T.

    Args:
        gram: V, shape (n, n).
        factor: lower-triangular blocks of H, shape (blocks, k, k), blocks k = n.

    Returns:
        S and X = H^-T (H^T V H)^(1/2) H^-1, shape (n, n).
    """
    blocks, k, _ = factor.shape
    n = blocks * k
    transposed = factor.transpose(0, 2, 1)
    half = np.matmul(transposed, gram.reshape(blocks, k, n)).reshape(n, n)  # H^T V
    m = np.matmul(transposed, half.T.reshape(blocks, k, n)).reshape(n, n)  # H^T V H, symmetric
    w, q = eigh(m, driver="evd", overwrite_a=True, check_finite=False)
    # an eigenvalue is off by some rounding of the largest (a random walk of n): taken off, the bound stays a bound
    rounding = 4.0 * np.sqrt(n) * np.finfo(np.float64).eps * float(w[-1])
    root = float(np.sqrt(np.maximum(w - rounding, 0.0)).sum())
    q *= np.sqrt(np.sqrt(np.maximum(w, rounding)))
    y = np.linalg.solve(transposed, q.reshape(blocks, k, n)).reshape(n, n)
    return root, y @ y.T


def blocks_of(x: Array, times: int) -> Array:
    """X on every pattern, a copy, shape (patterns, k, k)."""
    b = len(x) // times
    i = np.arange(b)
    return np.asarray(x.reshape(b, times, b, times)[i, :, i, :])


def loss(gram: Array, x: Array) -> float:
    """tr(V X^-1), infinite where X isn't positive definite."""
    lower, info = dpotrf(x.T, lower=1, clean=1)
    if info:
        return float("inf")
    inverse, info = dpotri(lower, lower=1, overwrite_c=1)
    if info:
        return float("inf")
    # the lower triangle alone is filled
    return float(2.0 * np.vdot(gram, inverse.T) - np.diag(gram) @ np.diag(inverse))


def separate(x: Array, times: int) -> Array:
    """X with its pattern pairs zeroed and every pattern's diagonal scaled to sum 1, in place."""
    b, i = len(x) // times, np.arange(len(x) // times)
    diagonal = np.diag(x).reshape(b, times).copy()
    zeroed = np.zeros((b, times, times))
    zeroed[:, np.arange(times), np.arange(times)] = diagonal
    x.reshape(b, times, b, times)[i, :, i, :] = zeroed
    scale = np.repeat(1.0 / np.sqrt(diagonal.sum(axis=1)), times)
    x *= scale[:, None]
    x *= scale
    return x


def certify(best: Best, gram: Array, x: Array) -> float:
    """Offer X, or its mixture with its diagonal, feasible too, of the least share that makes it positive definite.

    Args:
        best: receives it.
        gram: V.
        x: feasible apart from its definiteness, shape (n, n); may be changed.

    Returns:
        Its loss; infinite where no share did.
    """
    value = loss(gram, x)
    diagonal = np.diag(x).copy()
    kept = 1.0
    for share in MIXTURES:
        # a mixture costs about its share of the loss
        if np.isfinite(value) or share >= best.gap:
            break
        x *= (1.0 - share) / kept
        kept = 1.0 - share
        np.fill_diagonal(x, diagonal)
        value = loss(gram, x)
    best.offer(x, value)
    return value


def solve(
    task: Problem, tolerance: float, progress: Progress | None = None, kept: Callable[[Answer], Answer] = lambda f: f
) -> tuple[Best, Array]:
    """The optimum with X = 0 on pattern pairs, from ever finer problems down to the whole one.

    Args:
        task: V and k.
        tolerance: certified relative gap at which to stop.
        progress: called at every iteration of the whole problem.
        kept: makes the same function of one, with answers that an interrupted search had already.

    Returns:
        The certificates, and the factor H of U = H H^T, shape (patterns, k, k).
    """
    b, k = task.patterns, task.times
    sizes = [b]
    while sizes[-1] > 3 and sizes[-1] * k > 2 * _COARSEST:
        sizes.append(-(-sizes[-1] // 2))
    logs, places = np.zeros((1, k, k)), np.zeros(1)
    for size in reversed(sizes[1:]):
        # the first pattern is apart: where gradients act on all that follows, it alone can hold half of sum v
        inner = np.rint((np.arange(size - 1) + 0.5) * (b - 1) / (size - 1) + 0.5).astype(int)
        chosen = np.concatenate([[0], inner])
        rows = (chosen[:, None] * k + np.arange(k)).ravel()
        coarse = Problem(task.gram[np.ix_(rows, rows)], k)
        _, factor = iterate(coarse, _interpolate(logs, places, chosen), tolerance, None)
        logs, places = _logarithm(factor), chosen.astype(np.float64)
    return iterate(task, _interpolate(logs, places, np.arange(b)), tolerance, progress, kept)


def _interpolate(logs: Array, places: Array, wanted: NDArray[np.int_]) -> Array:
    """Coordinates of U for finer patterns from those of a coarse problem, shape (len(wanted), k, k).

    Both have the first pattern. What its v is above its neighbour's counts once, whatever the number of the others,
    among whom the rest of sum v is shared out.
    """
    if len(places) == 1:
        return np.repeat(logs, len(wanted), axis=0)
    inner, values, between = places[1:], logs[1:], wanted[1:]
    right = np.clip(np.searchsorted(inner, between), min(1, len(inner) - 1), len(inner) - 1)
    left = np.maximum(right - 1, 0)
    share = np.clip((between - inner[left]) / np.maximum(inner[right] - inner[left], 1.0), 0.0, 1.0)[:, None, None]
    out = np.concatenate([logs[:1], (1.0 - share) * values[left] + share * values[right]])
    ratio = float(np.exp(2.0 * (logs[0, 0, 0] - logs[1, 0, 0])))  # v of the first pattern over its neighbour's
    i = np.arange(logs.shape[1])
    out[0, i, i] += 0.5 * np.log1p(max(ratio - 1.0, 0.0) / ratio * (len(between) / len(inner) - 1.0))
    return np.asarray(out)


class _Respond:
    """From flat coordinates of U to its bound, -inf where they are too far out for floating point.

    And to the loss of the feasible X that `best` was offered, the coordinates of the best U on this ray, and the
    fixed-point step from there, in one array.
    """

    def __init__(self, task: Problem, best: Best) -> None:
        self.task, self.best = task, best

    def __call__(self, place: Array) -> tuple[float, Array]:
        times = self.task.times
        factor = _exponential(place.reshape(-1, times, times))
        answer = _respond_finite(self.task.gram, factor)
        if answer is None:
            return -np.inf, np.empty(0)
        root, x = answer
        total = float((factor[:, 0, 0] ** 2).sum())  # of v
        scale = root / total  # U scale^2, of response X / scale, is the best on this ray
        self.best.dual = max(self.best.dual, root * scale)
        logs = _logarithm(factor * scale)
        step = _logarithm(_step(factor * scale, blocks_of(x, times) / scale)) - logs
        value = certify(self.best, self.task.gram, separate(x, times))
        return root * scale, np.concatenate([[value], logs.ravel(), step.ravel()])


def iterate(
    task: Problem,
    logs: Array,
    tolerance: float,
    progress: Progress | None,
    kept: Callable[[Answer], Answer] = lambda f: f,
) -> tuple[Best, Array]:
    """Fixed-point iteration on U, extrapolated (Anderson), from coordinates `logs`; see `solve`.

    One step: with X the response to U, pattern p alone sees V_p = X_p U_p X_p, and its own optimum is in closed form,
    X_p = diag(x) of x_i proportional to (V_p)_ii^(1/2), sum 1, and U_p = diag(x)^-1 V_p diag(x)^-1.
    """
    best, history = Best(np.eye(0)), _History()
    respond_to = kept(_Respond(task, best))
    reached, waited, at = 1.0, 0, logs
    for iteration in range(1, _ITERATIONS + 1):
        weights = _exponential(logs)[:, 0, 0] ** 2  # v, shape (patterns,)
        bound, rest = respond_to(logs.ravel())
        if len(rest) and rest[0] < best.primal:  # an answer of an earlier run, whose X isn't at hand
            best.x, best.primal, at = np.eye(0), float(rest[0]), logs
        if bound < (1.0 - _FALL) * best.dual:
            logs = history.retreat()
        else:
            best.dual = max(best.dual, bound)
            place, step = rest[1:].reshape(2, *logs.shape)
            logs = history.extrapolate(place, step, weights / float(weights.sum()), bound)
        best.iterations = iteration
        if progress is not None:
            progress(iteration, best.primal, best.gap)
        waited += 1
        if best.gap < 0.5 * reached:
            reached, waited = best.gap, 0
        if best.gap <= tolerance or waited >= _PATIENCE:
            break
    if not len(best.x):
        again = Best(np.eye(0))
        _Respond(task, again)(at.ravel())
        best.x = again.x
    return best, _exponential(history.start())


def _respond_finite(gram: Array, factor: Array) -> tuple[float, Array] | None:
    """`respond`, or None where an extrapolation went too far for floating point."""
    if not np.isfinite(factor).all() or not (np.diagonal(factor, axis1=1, axis2=2) > 0.0).all():
        return None
    root, x = respond(gram, factor)
    return (root, x) if np.isfinite(root) and np.isfinite(x).all() and (np.diag(x) > 0.0).all() else None


def _step(factor: Array, x: Array) -> Array:
    """Factors of U_p = diag(x)^-1 X_p U_p X_p diag(x)^-1, shape (patterns, k, k), by QR: no condition is squared."""
    b = np.matmul(x, factor)
    norms = np.linalg.norm(b, axis=2, keepdims=True)  # (V_p)_ii^(1/2)
    b *= norms.sum(axis=1, keepdims=True) / norms
    upper = np.asarray(np.linalg.qr(b.transpose(0, 2, 1), mode="r"))
    signs = np.where(np.diagonal(upper, axis1=1, axis2=2) < 0.0, -1.0, 1.0)
    return np.asarray(upper.transpose(0, 2, 1) * signs[:, None, :])


def _logarithm(factor: Array) -> Array:
    """Coordinates of U in which any combination is a U: logs of H's diagonal, its rows relative to it below."""
    diagonal = np.diagonal(factor, axis1=1, axis2=2)
    out = factor / diagonal[:, :, None]
    i = np.arange(factor.shape[1])
    out[:, i, i] = np.log(diagonal)
    return np.asarray(out)


def _exponential(logs: Array) -> Array:
    """H of these coordinates, rows scaled to one norm a pattern, their geometric mean: U_p has a constant diagonal."""
    i = np.arange(logs.shape[1])
    diagonal = logs[:, i, i]
    out = np.tril(logs)
    out[:, i, i] = 1.0
    norms = np.linalg.norm(out, axis=2)
    level = (diagonal + np.log(norms)).mean(axis=1)
    with np.errstate(over="ignore"):  # checked where it is used
        return np.asarray(out * (np.exp(level)[:, None] / norms)[:, :, None])


class _History:
    """Anderson extrapolation of the fixed-point iteration z -> z + f(z), with a way back."""

    def __init__(self) -> None:
        self.places: list[Array] = []
        self.steps: list[Array] = []
        self.best: tuple[float, Array, Array] | None = None
        self.damping = 1.0

    def extrapolate(self, place: Array, step: Array, weights: Array, bound: float) -> Array:
        """The next iterate: the combination of those kept whose steps (weighted by pattern) cancel best."""
        if self.best is None or bound > self.best[0]:
            self.best = (bound, place, step)
        del self.places[: -_MEMORY + 1], self.steps[: -_MEMORY + 1]
        differences = [step - earlier for earlier in self.steps]
        out = place + step
        if differences:
            scale = np.sqrt(weights)[:, None, None]
            rows = np.array([(d * scale).ravel() for d in differences])
            normal = rows @ rows.T
            normal[np.diag_indices_from(normal)] += _RIDGE * np.trace(normal) + np.finfo(np.float64).tiny
            mixture = np.linalg.solve(normal, rows @ (step * scale).ravel())
            for share, earlier, difference in zip(mixture, self.places, differences):
                out -= share * (place - earlier + difference)
        self.places.append(place)
        self.steps.append(step)
        return out

    def start(self) -> Array:
        """The iterate of the best bound."""
        assert self.best is not None, "the first iterate always answers"
        return self.best[1]

    def retreat(self) -> Array:
        """From the best iterate a plain, ever shorter step; what led astray is forgotten."""
        assert self.best is not None, "the first iterate always answers"
        self.places, self.steps = [], []
        self.damping *= 0.5
        return self.best[1] + self.damping * self.best[2]
