"""Sensitivity and error of a strategy: the one home of both. All float64, unit clip norm, unit noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks, _patterns
from bluegrad._checks import Unsupported
from bluegrad.participation import (
    BallsInBins,
    CyclicPoisson,
    FixedEpochs,
    MinSeparation,
    Participation,
    Poisson,
    SinglePass,
)
from bluegrad.strategy import Strategy
from bluegrad.workload import Workload

Array = NDArray[np.float64]

# Largest n for which an n x n Gram matrix is formed where no structure helps (128 MiB).
DENSE_STEPS = 4096
# Most patterns of a min-separation that are tried one by one.
_ENUMERATED = 2000
# Largest number of participations for which the Gram matrix of one pattern is formed.
_PATTERN_TIMES = 1024


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
        ValueError: strategy and participation have different numbers of steps.
        Unsupported: no rule is known for the pair.

    Example:
        >>> from bluegrad import SinglePass, lambda_cgd
        >>> certify(lambda_cgd(4, lam=0.0), SinglePass(4))
        Sensitivity(value=1.0, exact=True, rule='largest column norm')

    Source: as `sensitivity`; for vector contributions arXiv 2211.06530, appendix H.
    """
    if not isinstance(strategy, Strategy):
        raise _checks.fail("strategy", strategy, "must be a bluegrad strategy", "e.g. bluegrad.lambda_cgd(...)")
    _same_steps("participation", participation.steps, strategy)
    return _certify(participation, strategy)


@singledispatch
def _certify(participation: Participation, strategy: Strategy) -> Sensitivity:
    raise Unsupported(f"no sensitivity rule for {strategy!r} under {participation!r}")


@_certify.register
def _(participation: SinglePass, strategy: Strategy) -> Sensitivity:
    return _single(strategy)


@_certify.register
def _(participation: FixedEpochs, strategy: Strategy) -> Sensitivity:
    k, b = participation.epochs, participation.separation
    if k == 1:
        return _single(strategy)
    c = strategy.coefficients()
    if c is None:
        gram = _gram(strategy, participation)
        return _largest([_patterns.worst_contribution(gram[s::b, s::b]) for s in range(b)])
    # Pattern s is pattern 0 shifted down by s and cut at n, whatever the contributions: pattern 0 is the worst.
    if (c >= 0.0).all():
        return Sensitivity(float(np.linalg.norm(_repeated(c, b, k, participation.steps))), True,
                           "non-negative Toeplitz columns, first pattern")  # fmt: skip
    if k <= _PATTERN_TIMES:
        return _largest([_patterns.worst_contribution(_pattern_gram(c, b, k))])
    return _running_maximum(c, participation)


@_certify.register
def _(participation: MinSeparation, strategy: Strategy) -> Sensitivity:
    n, b = participation.steps, participation.separation
    k = min(participation.times, -(-n // b))
    if k == 1:
        return _single(strategy)
    c = strategy.coefficients()
    if c is not None:
        if (c >= 0.0).all() and (np.diff(c) <= 0.0).all():
            return Sensitivity(float(np.linalg.norm(_repeated(c, b, k, n))), True,
                               "non-negative non-increasing Toeplitz columns")  # fmt: skip
        if len(c) <= b:
            energy = np.cumsum(c * c)
            used = [energy[min(n - j * b, len(c)) - 1] for j in range(k)]
            return Sensitivity(sqrt(sum(used)), True, "bands at most the separation")
    if n <= DENSE_STEPS and _patterns.count_patterns(n, b, k, _ENUMERATED) <= _ENUMERATED:
        gram = _gram(strategy, participation)
        patterns = _patterns.separated_patterns(n, b, k)
        return _largest([_patterns.worst_contribution(gram[np.ix_(p, p)]) for p in patterns])
    bounds = [] if c is None else [_running_maximum(c, participation)]
    if n <= DENSE_STEPS or not bounds:
        gram = _gram(strategy, participation)
        bounds.append(Sensitivity(sqrt(_patterns.separated_bound(gram, b, k)), False, "dynamic programming"))
    return min(bounds, key=lambda bound: bound.value)


@_certify.register
def _(participation: Poisson, strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    if c is None or len(c) > 1:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: amplification by Poisson sampling is proved for independent "
            "noise only; use bluegrad.identity(steps), or FixedEpochs for correlated noise"
        )
    return Sensitivity(abs(float(c[0])), True, "one step of independent noise; steps are composed")


@_certify.register
def _(participation: BallsInBins, strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    entries = strategy.dense() if c is None else c
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
    bands = _bands(strategy, participation) if c is None else len(c)
    if bands > participation.period:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: its {bands} bands are more than period={participation.period}, "
            "so rounds of one unit overlap and aren't independent; use period >= bands or fewer bands"
        )
    # One unit's rounds are at least `period` steps apart, so their columns have no row in common: each round is a
    # Gaussian mechanism of its own, of at most the largest column's sensitivity, and rounds are composed.
    return replace(_single(strategy), rule="largest column norm; rounds don't overlap and are composed")


def _bands(strategy: Strategy, participation: CyclicPoisson) -> int:
    """Number of diagonals of a lower-triangular C on and below the main one, to the last with an entry."""
    rows, columns = np.nonzero(strategy.dense())
    if len(strategy.dense()) != strategy.steps or (rows < columns).any():
        raise Unsupported(f"{strategy!r} under {participation!r}: C must be square and lower-triangular to have bands")
    return int((rows - columns).max()) + 1


def _single(strategy: Strategy) -> Sensitivity:
    c = strategy.coefficients()
    squared = float(np.dot(c, c)) if c is not None else float((strategy.dense() ** 2).sum(axis=0).max())
    return Sensitivity(sqrt(squared), True, "largest column norm")


def _repeated(c: Array, b: int, k: int, n: int) -> Array:
    """sum_(j<k) C[:, j b] for Toeplitz C, shape (n,), in O(n)."""
    rows = -(-n // b)
    blocks = np.zeros(rows * b)
    blocks[: len(c)] = c[:n]
    sums = np.cumsum(blocks.reshape(rows, b), axis=0)
    if k < rows:
        sums[k:] -= sums[:-k].copy()
    return sums.reshape(-1)[:n]


def _pattern_gram(c: Array, b: int, k: int) -> Array:
    """X on the steps 0, b, 2b, ... for Toeplitz C of n = k b steps, shape (k, k), in O(n k)."""
    padded = np.zeros(k * b)
    padded[: len(c)] = c
    blocks = padded.reshape(k, b)
    products = blocks @ blocks.T
    gram = np.empty((k, k))
    for lag in range(k):
        # X[i, i + lag] = sum over blocks m >= i + lag of <block m - i, block m - i - lag>
        diagonal = np.cumsum(np.diagonal(products, -lag))[::-1]
        i = np.arange(k - lag)
        gram[i, i + lag] = gram[i + lag, i] = diagonal
    return gram


def _running_maximum(c: Array, participation: Participation) -> Sensitivity:
    """Bound by the non-increasing envelope of |c|: any unit's contribution is no larger than under it."""
    assert isinstance(participation, (FixedEpochs, MinSeparation))
    envelope = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
    k = min(participation.times, -(-participation.steps // participation.separation))
    total = _repeated(envelope, participation.separation, k, participation.steps)
    return Sensitivity(float(np.linalg.norm(total)), False, "running maximum of |C|")


def _gram(strategy: Strategy, participation: Participation) -> Array:
    if strategy.steps > DENSE_STEPS:
        raise Unsupported(
            f"{strategy!r} under {participation!r}: no structure to use, and steps={strategy.steps} is more than "
            f"the {DENSE_STEPS} up to which the Gram matrix is formed"
        )
    dense = strategy.dense()
    return np.asarray(dense.T @ dense)


def _largest(worst: list[_patterns.Worst]) -> Sensitivity:
    top = max(worst, key=lambda w: w.squared)
    return Sensitivity(sqrt(top.squared), top.exact, top.rule)


def errors(strategy: Strategy, workload: Workload) -> Array:
    """Standard deviation of every row of A N Z for unit noise Z: the row norms of B = A N.

    Args:
        strategy: C, with noising N.
        workload: A, of the same number of steps.

    Returns:
        Row norms of B, shape (steps,). Multiply by noise multiplier, clip norm and sensitivity for the noise
        at the model.

    Raises:
        ValueError: different numbers of steps.

    Example:
        >>> from bluegrad import PrefixSum, identity
        >>> errors(identity(4), PrefixSum(4)).round(3)
        array([1.   , 1.414, 1.732, 2.   ])

    Source: arXiv 2601.22334, section 2.
    """
    _same_steps("workload", workload.steps, strategy)
    n = strategy.noise_coefficients()
    if n is None:
        return np.linalg.norm(workload.dense() @ strategy.noising(), axis=1)
    return workload.row_norms(n)


def rmse(strategy: Strategy, workload: Workload, participation: Participation) -> float:
    """Root mean squared error at noise multiplier 1: sens(C) * ||A N||_F / sqrt(n).

    Args:
        strategy: C.
        workload: A.
        participation: gives the sensitivity.

    Returns:
        The error in units of the clip norm; times the noise multiplier it is the model's noise.

    Raises:
        ValueError: different numbers of steps.
        Unsupported: no sensitivity rule for the pair.

    Example:
        >>> from bluegrad import PrefixSum, SinglePass, identity
        >>> rmse(identity(3), PrefixSum(3), SinglePass(3)).__round__(6)
        1.414214

    Source: arXiv 2211.06530, equation 4 (its loss is n rmse^2).
    """
    row = errors(strategy, workload)
    return sensitivity(strategy, participation) * float(np.linalg.norm(row)) / sqrt(strategy.steps)


def max_error(strategy: Strategy, workload: Workload, participation: Participation) -> float:
    """Largest error over the steps at noise multiplier 1: sens(C) * max row norm of A N.

    Args:
        strategy: C.
        workload: A.
        participation: gives the sensitivity.

    Returns:
        The error in units of the clip norm.

    Raises:
        ValueError: different numbers of steps.
        Unsupported: no sensitivity rule for the pair.

    Example:
        >>> from bluegrad import PrefixSum, SinglePass, identity
        >>> max_error(identity(4), PrefixSum(4), SinglePass(4))
        2.0

    Source: arXiv 2601.22334, section 2.
    """
    return sensitivity(strategy, participation) * float(errors(strategy, workload).max())


def _same_steps(name: str, steps: int, strategy: Strategy) -> None:
    if steps != strategy.steps:
        raise _checks.fail(
            f"{name}.steps", steps, f"must equal the strategy's steps={strategy.steps}",
            "build both for the same horizon",
        )  # fmt: skip
