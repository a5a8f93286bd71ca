"""The most that one privacy unit can contribute, given the Gram matrix X = C^T C of its possible steps.

On one pattern of steps the squared sensitivity is the maximum of sum_ij X_ij <g_i, g_j> over contributions
|g_i| <= 1 in R^d: max tr(X Q) over positive semidefinite Q of unit diagonal. It is a small semidefinite
program, solved here by coordinate ascent with a dual certificate, so that what is returned is never below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A certified gap below this (relative) counts as exact.
GAP = 1e-9
_SWEEPS = 2000
# Most values over which participations are counted in a dynamic program (a few seconds).
_COUNTED = 1_000_000_000
# Largest pattern whose semidefinite program is solved; larger ones are bounded.
_LARGEST_PROGRAM = 1024
_CHECK_EVERY = 20
# Squares above this, or below its inverse, belong to sensitivities that are refused.
_RANGE = 1e100


class Worst(NamedTuple):
    """Largest squared contribution (never below the truth), whether it is exact, and how it was found."""

    squared: float
    exact: bool
    rule: str


def worst_contribution(gram: Array) -> Worst:
    """Largest squared norm of sum_i C[:, i] g_i^T over vectors |g_i| <= 1, from X = C^T C, shape (k, k).

    Sources: arXiv 2211.06530, theorem 2.1 (X >= 0) and appendix H (vector contributions).
    """
    absolute = float(np.abs(gram).sum())
    if not absolute < _RANGE:
        return Worst(math.inf, False, "out of range")
    if absolute <= 1.0 / _RANGE:
        return Worst(absolute, False, "absolute Gram matrix")
    if absolute - float(gram.sum()) <= 1e-13 * absolute:
        return Worst(absolute, True, "non-negative Gram matrix")
    if len(gram) <= _LARGEST_PROGRAM:
        if _signs_align(gram):
            return Worst(absolute, True, "Gram matrix non-negative up to signs")
        return _semidefinite(gram, absolute)
    # |sum_i C[:, i] g_i^T|^2 <= |C_pattern|^2 sum |g_i|^2, the norm to rounding from above
    rounding = 1.0 + 4.0 * len(gram) * np.finfo(np.float64).eps
    spectral = len(gram) * float(np.linalg.eigvalsh(gram)[-1]) * rounding
    return min(Worst(absolute, False, "absolute Gram matrix"), Worst(spectral, False, "spectral norm"))


def _signs_align(gram: Array) -> bool:
    """Whether signs s exist with s_i s_j X_ij >= 0 everywhere, so that |X| summed is attained."""
    k = len(gram)
    sign = np.zeros(k)
    for root in range(k):
        if sign[root]:
            continue
        sign[root], queue = 1.0, [root]
        while queue:
            i = queue.pop()
            neighbours = np.flatnonzero((gram[i] != 0.0) & (sign == 0.0))
            sign[neighbours] = sign[i] * np.sign(gram[i, neighbours])
            queue.extend(int(j) for j in neighbours)
    return bool((sign[:, None] * sign[None, :] * gram >= 0.0).all())


def _semidefinite(gram: Array, absolute: float) -> Worst:
    """max tr(X Q), Q psd, diag(Q) = 1, by coordinate ascent on Q = V V^T; the dual value bounds it above."""
    k = len(gram)
    rank = math.isqrt(2 * k) + 2  # enough for every local maximum to be global (Barvinok, Pataki)
    v = np.random.default_rng(0).standard_normal((k, rank))  # a start, not noise: any start will do
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    off = gram - np.diag(np.diag(gram))
    best = absolute
    for sweep in range(1, _SWEEPS + 1):
        for i in range(k):
            pull = off[i] @ v
            length = np.linalg.norm(pull)
            if length > 0.0:
                v[i] = pull / length
        if sweep % _CHECK_EVERY == 0:
            primal = float(np.einsum("ij,ir,jr->", gram, v, v, optimize=True))
            best = min(best, _dual_bound(gram, off, v))
            if best - primal <= GAP * best:
                return Worst(best, True, "semidefinite program, certified")
    return Worst(best, False, "semidefinite program, upper bound")


def _dual_bound(gram: Array, off: Array, v: Array) -> float:
    """Sum of y, with y from the stationarity of V, shifted until diag(y) - X is positive semidefinite."""
    y = np.linalg.norm(off @ v, axis=1) + np.diag(gram)
    lowest = float(np.linalg.eigvalsh(np.diag(y) - gram)[0])
    # eigvalsh errs by a few ulp of the norm: shift that much further than it says
    rounding = 4.0 * len(y) * np.finfo(np.float64).eps * float(np.abs(y).max())
    return float(y.sum()) + len(y) * max(0.0, rounding - lowest)


def count_patterns(steps: int, separation: int, times: int, limit: int) -> int:
    """Number of maximal patterns of b-min-separation, counted up to `limit` + 1."""
    total = 0
    for _ in separated_patterns(steps, separation, times):
        total += 1
        if total > limit:
            break
    return total


def separated_patterns(steps: int, separation: int, times: int) -> Iterator[list[int]]:
    """Patterns of gaps of at least `separation`, at most `times` long, that aren't the head or tail of a longer one.

    Between two participations any longer gap is tried too: with few of them, that may be their best use.
    """
    stack: list[list[int]] = [[first] for first in range(steps - 1, -1, -1)]
    while stack:
        pattern = stack.pop()
        following = pattern[-1] + separation
        if len(pattern) == times or following >= steps:
            if len(pattern) == times or pattern[0] < separation:  # else an earlier step could be added
                yield pattern
            continue
        stack.extend([*pattern, step] for step in range(steps - 1, following - 1, -1))


def separated_bound(gram: Array, separation: int, times: int) -> float:
    """Upper bound on the squared sensitivity under b-min-separation, by dynamic programming over |X|.

    Row i's share is at most r_i = max over patterns of sum_j |X_ij|; the bound is the largest sum of r over
    a pattern. Source: arXiv 2306.08153, theorem 2.

    Args:
        gram: X = C^T C, shape (n, n).
        separation: smallest gap b.
        times: most participations k.
    """
    shares = best_patterns(np.abs(gram), separation, times)
    return float(best_patterns(shares[None, :], separation, times)[0])


def _best_uncounted(values: Array, separation: int) -> Array:
    """As `best_patterns` for any number of participations, in one pass from the end."""
    rows, n = values.shape
    best = np.zeros((n + separation, rows))  # best[t]: from step t on
    for t in range(n - 1, -1, -1):
        np.maximum(best[t + 1], values[:, t] + best[t + separation], out=best[t])
    return best[0]


def counted(rows: int, steps: int, separation: int, times: int) -> bool:
    """Whether `best_patterns` is exact: as many participations as fit, or few enough to count them."""
    return times >= -(-steps // separation) or rows * steps * times <= _COUNTED


def best_patterns(values: Array, separation: int, times: int) -> Array:
    """Largest sum of non-negative values over one pattern, for every row of values, shape (rows, n) -> (rows,).

    Where counting the participations would take too long they aren't counted: a bound from above.
    """
    rows, n = values.shape
    if times >= -(-n // separation) or not counted(rows, n, separation, times):
        return _best_uncounted(values, separation)
    best = np.zeros((rows, n + separation))  # best[:, t]: from step t on, with the participations allowed so far
    for _ in range(min(times, -(-n // separation))):
        taken = values + best[:, separation:]
        best = np.zeros_like(best)
        best[:, :n] = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return np.asarray(best[:, 0])
