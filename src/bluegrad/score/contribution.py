"""Sensitivity: the most that one unit can change C G. All float64, unit clip norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from bluegrad import _checks, _patterns
from bluegrad._checks import Unsupported
from bluegrad.participation import (
    BallsInBins,
    CyclicPoisson,
    FixedEpochs,
    MinSeparation,
    Participation,
    Poisson,
    Separated,
    SinglePass,
)
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import DENSE_STEPS, check_dense, check_scale, check_strategy

Array = NDArray[np.float64]

# Most patterns of a min-separation that are tried one by one.
_ENUMERATED = 2000
# Most entries of the Gram matrix that are formed for the patterns of a strategy without Toeplitz structure (1.6 GB).
_ENTRIES = 200_000_000


@dataclass(frozen=True)
class Sensitivity:
    """A sensitivity with its pedigree.

    Args:
        value: the L2 sensitivity, in units of the clip norm; never below the truth.
        exact: whether it is the truth (to rounding), or an upper bound.
        rule: the theorem or method that gave it.
    """

    value: float
    exact: bool
    rule: str


def sensitivity(strategy: Strategy, participation: Participation) -> float:
    """L2 sensitivity of C under a participation: exact, or a certified upper bound.

    sens = max over patterns and contributions |g_i| <= 1 (vectors) of the Frobenius norm of
    sum_i C[:, i] g_i^T. `certify` tells by which rule, and whether it is exact.

    Args:
        strategy: C.
        participation: which steps one unit may join, over the same number of steps.

    Returns:
        The sensitivity in units of the clip norm.

    Raises:
        ValueError: strategy and participation have different numbers of steps.
        Unsupported: no rule is known for the pair.

    Example:
        >>> from bluegrad import FixedEpochs, identity
        >>> sensitivity(identity(8), FixedEpochs(8, epochs=4))
        2.0

    Guarantees: never below the truth, so noise scaled by it is never too small.
    Source: arXiv 2211.06530, section 2; rules in arXiv 2405.13763 (theorem 2) and 2306.08153 (section 4).
    """
    return certify(strategy, participation).value


def certify(strategy: Strategy, participation: Participation) -> Sensitivity:
    """Sensitivity with the rule that gave it, and whether it is exact.

    Args:
        strategy: C.
        participation: which steps one unit may join, over the same number of steps.

    Returns:
        Value, exactness and rule.

    Raises:
        ValueError: strategy and participation have different numbers of steps, or entries too large or too small for
            their squares.
        Unsupported: no rule is known for the pair.

    Example:
        >>> from bluegrad import SinglePass, lambda_cgd
        >>> certify(lambda_cgd(4, lam=0.0), SinglePass(4))
        Sensitivity(value=1.0, exact=True, rule='largest column norm')

    Source: as `sensitivity`; for vector contributions arXiv 2211.06530, appendix H.
    """
    check_strategy(strategy)
    same_steps("participation", participation.steps, strategy)
    with np.errstate(over="ignore", invalid="ignore"):  # caught by its result
        found = _certify(participation, strategy)
    check_scale("sensitivity", found.value)
    return found


@singledispatch
def _certify(participation: Participation, strategy: Strategy) -> Sensitivity:
    raise Unsupported(f"no sensitivity rule for {strategy!r} under {participation!r}")


@_certify.register
def _(participation: SinglePass, strategy: Strategy) -> Sensitivity:
    return _single(strategy)


@_certify.register
def _(participation: FixedEpochs, strategy: Strategy) -> Sensitivity:
    n, k, b = participation.steps, participation.epochs, participation.separation
    if k == 1:
        return _single(strategy)
    if strategy.bands <= b:
        squares = strategy.column_norms().reshape(k, b) ** 2
        return Sensitivity(sqrt(float(squares.sum(axis=0).max())), True, "bands at most the separation")
    c = strategy.coefficients()
    # Pattern s is pattern 0 shifted down by s and cut at n, whatever the contributions: pattern 0 is the worst.
    if c is not None and (c >= 0.0).all():
        return Sensitivity(float(np.linalg.norm(_repeated(c, b, k, n))), True,
                           "non-negative Toeplitz columns, first pattern")  # fmt: skip
    return _by_patterns(participation, strategy)


def _by_patterns(participation: FixedEpochs, strategy: Strategy) -> Sensitivity:
    """The largest over the b patterns of what each allows, from the diagonals of X that patterns meet."""
    n, k, b = participation.steps, participation.epochs, participation.separation
    if k * n > 2 * _ENTRIES or (strategy.gram_coefficients() is not None and k > DENSE_STEPS):
        return _any_separated(strategy, participation)
    x, c = strategy.gram_coefficients(), strategy.coefficients()
    if x is not None:  # every pattern has the same Gram matrix
        return _largest([_patterns.worst_contribution(toeplitz(x[::b]))])
    diagonals = [strategy.gram_diagonal(lag) for lag in range(0, n, b)]  # diagonals[m][i] = X[i, i + m b]
    if c is not None:
        return _largest([_patterns.worst_contribution(_pattern_gram(diagonals, 0, b))])
    if min(float(diagonal.min()) for diagonal in diagonals) >= 0.0:
        total = sum((1.0 + (m > 0)) * d.reshape(k - m, b).sum(axis=0) for m, d in enumerate(diagonals))
        return Sensitivity(sqrt(float(np.max(total))), True, "non-negative Gram matrix")
    return _largest_of([_pattern_gram(diagonals, s, b) for s in range(b)])


@_certify.register
def _(participation: MinSeparation, strategy: Strategy) -> Sensitivity:
    n, b = participation.steps, participation.separation
    k = min(participation.times, -(-n // b))
    if k == 1:
        return _single(strategy)
    c = strategy.coefficients()
    if c is not None and (c >= 0.0).all() and (np.diff(c) <= 0.0).all():
        return Sensitivity(float(np.linalg.norm(_repeated(c, b, k, n))), True,
                           "non-negative non-increasing Toeplitz columns")  # fmt: skip
    if strategy.bands <= b:
        squares = strategy.column_norms() ** 2
        falling = bool((np.diff(squares) <= 0.0).all())  # then nothing beats the earliest steps
        total = squares[::b][:k].sum() if falling else _patterns.best_patterns(squares[None, :], b, k)[0]
        exact = falling or _patterns.counted(1, n, b, k)
        return Sensitivity(sqrt(float(total)), exact, "bands at most the separation")
    if n <= DENSE_STEPS and _patterns.count_patterns(n, b, k, _ENUMERATED) <= _ENUMERATED:
        gram = _gram(strategy)
        patterns = _patterns.separated_patterns(n, b, k)
        return _largest_of([gram[np.ix_(p, p)] for p in patterns])
    return _any_separated(strategy, participation)


@_certify.register
def _(participation: Poisson, strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    if c is None or len(c) > 1:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: amplification by Poisson sampling is proved for independent "
            "noise only; use bluegrad.identity(steps), or BallsInBins or FixedEpochs for correlated noise"
        )
    return Sensitivity(abs(float(c[0])), True, "one step of independent noise; steps are composed")


@_certify.register
def _(participation: BallsInBins, strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    entries = _lower_triangular(strategy, participation) if c is None else c
    # a series inverted by FFT has errors of 1e-16 around entries that are zero or nearly so
    if float(entries.min()) < -1e-13 * float(np.abs(entries).max()):
        raise Unsupported(
            f"{strategy!r} under {participation!r}: amplification by balls-in-bins is proved for strategies without "
            f"negative entries, and C has {float(entries.min()):.6g}; use FixedEpochs, or such a strategy as "
            "bluegrad.lambda_cgd"
        )
    return _certify(FixedEpochs(participation.steps, participation.epochs), strategy)


@_certify.register
def _(participation: CyclicPoisson, strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    if c is None:
        rows, columns = np.nonzero(_lower_triangular(strategy, participation))
        bands = int((rows - columns).max()) + 1
    else:
        bands = len(c)
    if bands > participation.period:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: its {bands} bands are more than period={participation.period}, "
            "so rounds of one unit overlap and aren't independent; use period >= bands or fewer bands"
        )
    # One unit's rounds are at least `period` steps apart, so their columns have no row in common: each round is a
    # Gaussian mechanism of its own, of at most the largest column's sensitivity, and rounds are composed.
    return replace(_single(strategy), rule="largest column norm; rounds don't overlap and are composed")


def _lower_triangular(strategy: Strategy, participation: Participation) -> Array:
    """C, where it is the lower-triangular matrix of what is released step by step.

    The laws of sampled batches look at C's entries. Where the noise isn't C^-1, the entries of the matrix that is
    released, L^-1, are others than C's.
    """
    check_dense(strategy, "C")
    c = strategy.dense()
    if c.shape[0] != c.shape[1] or np.triu(c, 1).any():
        raise Unsupported(f"{strategy!r} under {participation!r}: proved for square lower-triangular C only")
    return c


def _single(strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    largest = sqrt(float(np.dot(c, c))) if c is not None else float(strategy.column_norms().max())
    return Sensitivity(largest, True, "largest column norm")


def _any_separated(strategy: Strategy, participation: Separated) -> Sensitivity:
    """The least of the bounds that hold for any strategy under a separation of at least b."""
    n, b = participation.steps, participation.separation
    k = min(participation.times, -(-n // b))
    bounds = []
    if strategy.coefficients() is not None:
        bounds.append(_running_maximum(strategy, participation))
    if n <= DENSE_STEPS:
        squared = _patterns.separated_bound(_gram(strategy), b, k)
        bounds.append(Sensitivity(sqrt(squared), False, "dynamic programming"))
    if strategy.gram_coefficients() is not None or strategy.bands * n <= _ENTRIES:
        bounds.append(_gram_envelope(strategy, b, k))
    if not bounds:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: no structure to use, and steps={n} is more than the {DENSE_STEPS} "
            "up to which the Gram matrix is formed"
        )
    return min(bounds, key=lambda bound: bound.value)


def _repeated(c: Array, b: int, k: int, n: int) -> Array:
    """sum_(j<k) C[:, j b] for Toeplitz C, shape (n,), in O(n)."""
    rows = -(-n // b)
    blocks = np.zeros(rows * b)
    blocks[: len(c)] = c[:n]
    sums = np.cumsum(blocks.reshape(rows, b), axis=0)
    if k < rows:
        sums[k:] -= sums[:-k].copy()
    return sums.reshape(-1)[:n]


def _running_maximum(strategy: Strategy, participation: Separated) -> Sensitivity:
    """Bound by the non-increasing envelope of |c|: any unit's contribution is no larger than under it."""
    c = strategy.coefficients()
    assert c is not None
    envelope = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
    k = min(participation.times, -(-participation.steps // participation.separation))
    total = _repeated(envelope, participation.separation, k, participation.steps)
    return Sensitivity(float(np.linalg.norm(total)), False, "running maximum of |C|")


def _gram_envelope(strategy: Strategy, b: int, k: int) -> Sensitivity:
    """Bound by the largest |X[i, j]| at each distance: participations m apart in order are at least m b steps apart."""
    x = strategy.gram_coefficients()
    if x is None:
        x = np.array([np.abs(strategy.gram_diagonal(lag)).max() for lag in range(strategy.bands)])
    envelope = np.maximum.accumulate(np.abs(x)[::-1])[::-1]
    m = np.arange(1, k)
    apart = np.where(m * b < len(envelope), envelope[np.minimum(m * b, len(envelope) - 1)], 0.0)
    squared = k * float(envelope[0]) + 2.0 * float(((k - m) * apart).sum())
    return Sensitivity(sqrt(squared), False, "largest entries of |C^T C| at each distance")


def _pattern_gram(diagonals: list[Array], first: int, b: int) -> Array:
    """X on the steps first, first + b, ..., shape (k, k)."""
    k = len(diagonals)
    out = np.empty((k, k))
    for m, diagonal in enumerate(diagonals):
        i = np.arange(k - m)
        out[i, i + m] = out[i + m, i] = diagonal[first::b]
    return out


def _gram(strategy: Strategy) -> Array:
    """X = C^T C, shape (steps, steps)."""
    n = strategy.steps
    out = np.zeros((n, n))
    for lag in range(min(strategy.bands, n)):
        i = np.arange(n - lag)
        out[i, i + lag] = out[i + lag, i] = strategy.gram_diagonal(lag)
    return out


def _largest_of(grams: list[Array]) -> Sensitivity:
    """The largest over patterns; those whose absolute sum can't beat what is found aren't solved."""
    order = sorted(grams, key=lambda gram: -float(np.nan_to_num(np.abs(gram).sum(), nan=np.inf)))
    worst = [_patterns.worst_contribution(order[0])]
    for gram, before in zip(order[1:], order):
        if float(np.abs(gram).sum()) <= max(w.squared for w in worst):
            break
        if not np.array_equal(gram, before):
            worst.append(_patterns.worst_contribution(gram))
    return _largest(worst)


def _largest(worst: list[_patterns.Worst]) -> Sensitivity:
    top = max(worst, key=lambda w: w.squared)
    return Sensitivity(sqrt(top.squared), top.exact, top.rule)


def same_steps(name: str, steps: int, strategy: Strategy) -> None:
    if steps != strategy.steps:
        raise _checks.fail(
            f"{name}.steps", steps, f"must equal the strategy's steps={strategy.steps}",
            "build both for the same horizon",
        )  # fmt: skip
