"""Laws of sums of independent log-normal variables on a grid of logarithms, rounded upwards in convex order.

A value between two grid points goes to one of them at random, with its mean kept. That makes the law larger in convex
order, also in sums with independent others, so that E f(sum) is never below the truth for any convex f; and the
error falls as the square of the grid's width. Delta is such an expectation of the likelihood ratio, in both
directions, so one law bounds both (dp_accounting's "connect the dots", for mixtures).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, expm1, floor, log, log1p, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr

Array = NDArray[np.float64]

# What is cut off a tail: in mean at the top, in probability at the bottom, relative to the whole.
TAIL = 1e-24
# Standard deviations beyond which a normal variable has less than that.
_REACH = 10.4
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True, eq=False)
class GridLaw:
    """A variable X >= 0: masses at e^(width (low + i)) and at zero, and a rest of X that only its mean is known of.

    Args:
        width: of the grid, in the logarithm.
        low: index of the first point.
        masses: probabilities, shape (points,).
        zero: probability of 0.
        lost: mean of what isn't on the grid: E f(X) is at most that of the grid plus lost times f's slope.
    """

    width: float
    low: int
    masses: Array
    zero: float
    lost: float

    @property
    def values(self) -> Array:
        """The points."""
        return np.exp(self.width * (self.low + np.arange(len(self.masses))))

    def halved(self) -> GridLaw:
        """The same law on a grid of half the width."""
        masses = np.zeros(2 * len(self.masses) - 1)
        masses[::2] = self.masses
        return GridLaw(0.5 * self.width, 2 * self.low, masses, self.zero, self.lost)

    def refined(self, width: float) -> GridLaw:
        """On a grid no wider than `width`."""
        law = self
        while law.width > width * (1.0 + 1e-9):
            law = law.halved()
        return law

    def __add__(self, other: GridLaw) -> GridLaw:
        """Law of the sum of independent variables, both on the same grid: O(points^2) at most."""
        assert self.width == other.width
        low = min(self.low, other.low)
        size = max(self.low + len(self.masses), other.low + len(other.masses)) - low
        a, b = self._from(low, size), other._from(low, size)
        out = _sums(a, b, self.width, self is other)
        out[:size] += a * other.zero + b * self.zero
        return GridLaw(self.width, low, out, self.zero * other.zero, self.lost + other.lost)

    def _from(self, low: int, size: int) -> Array:
        out = np.zeros(size)
        out[self.low - low :][: len(self.masses)] = self.masses
        return out

    def trimmed(self, mean: float, mass: float) -> GridLaw:
        """Without points at the top of mean `mean` in all, and at the bottom of probability `mass`: never smaller.

        At the top a value falls to the last point that stays, and what it lost is kept in `lost`; at the bottom it
        goes to zero or to the first point that stays.
        """
        v, p = self.values, self.masses
        end = max(1, int(np.count_nonzero(np.cumsum((p * v)[::-1])[::-1] > mean)))
        start = min(int(np.count_nonzero(np.cumsum(p[:end]) <= mass)), end - 1)
        kept = p[start:end].copy()
        kept[-1] += p[end:].sum()
        lost = float(np.dot(p[end:], v[end:] - v[end - 1]))
        up = float(np.dot(p[:start], v[:start])) / float(v[start])
        kept[0] += up
        below = float(p[:start].sum()) - up
        return GridLaw(self.width, self.low + start, kept, self.zero + below, self.lost + lost)


def log_normal(square: float, width: float) -> GridLaw:
    """e^(u - S/2), u ~ Normal(0, S): of mean 1."""
    deviation = sqrt(square)
    low, high = (floor(-(0.5 * square + _REACH * deviation) / width), ceil((0.5 * square + _REACH * deviation) / width))
    left = width * np.arange(low, high)[:, None]
    x = left + 0.5 * width * (_NODES + 1.0)
    density = np.exp(-0.5 * ((x + 0.5 * square) / deviation) ** 2) * (_WEIGHTS * width / (deviation * sqrt(8.0 * pi)))
    up = np.expm1(x - left) / expm1(width)  # share of the upper end, so that the mean is kept
    masses = np.zeros(high - low + 1)
    masses[:-1] += (density * (1.0 - up)).sum(axis=1)
    masses[1:] += (density * up).sum(axis=1)
    bottom, top = width * low / deviation, width * high / deviation
    masses[-1] += float(ndtr(-top - 0.5 * deviation))
    lost = float(ndtr(0.5 * deviation - top) + ndtr(bottom - 0.5 * deviation))
    return GridLaw(width, low, masses, float(ndtr(bottom + 0.5 * deviation)), lost)


def sum_of_log_normals(count: int, square: float, width: float) -> GridLaw:
    """Law of the sum of `count` independent e^(u_i - S/2), u_i ~ Normal(0, S), by O(log count) additions.

    `width` of the grid is in standard deviations of the sum's logarithm.
    """

    def grid(terms: int) -> float:
        # the width of a sum's logarithm; the share of a term's rounding in the sum falls as 1 / count
        return width * sqrt(log1p(expm1(min(square, 500.0)) / terms))

    def add(a: GridLaw, b: GridLaw, terms: int) -> GridLaw:
        finest = min(a.width, b.width, grid(terms))
        one = a.refined(finest)
        two = one if a is b else b.refined(finest)
        finest = min(one.width, two.width)
        return (one.refined(finest) + (two.refined(finest) if two is not one else one)).trimmed(TAIL * terms, TAIL)

    block, terms = log_normal(square, grid(1)), 1
    total: tuple[GridLaw, int] | None = None
    while True:
        if count & terms:
            total = (block, terms) if total is None else (add(total[0], block, total[1] + terms), total[1] + terms)
        if 2 * terms > count:
            break
        block, terms = add(block, block, 2 * terms), 2 * terms
    assert total is not None and total[1] == count
    return total[0]


def _sums(a: Array, b: Array, width: float, same: bool) -> Array:
    """Masses of the sums of grid points, each split between its two neighbours with the mean kept.

    Where the larger is e^(w i) and the smaller d points below, the sum is e^(w i) (1 + e^(-w d)): it lies `over[d]`
    points above the larger and goes to the next with probability `up[d]`, whatever i.
    """
    size = len(a)
    d = np.arange(size)
    exact = np.log1p(np.exp(-width * d)) / width
    over = np.floor(exact).astype(np.int64)
    up = np.clip(np.expm1(width * (exact - over)) / expm1(width), 0.0, 1.0)
    out = np.zeros(size + ceil(log(2.0) / width) + 2)
    near = int(np.count_nonzero((over > 0) | (up > 0.5)))
    for i in range(near):
        mass = a[i:] * b[: size - i]
        if same and i:
            mass *= 2.0
        elif i:
            mass += a[: size - i] * b[i:]
        j, higher = i + over[i], up[i] * mass
        out[j + 1 : j + 1 + size - i] += higher
        out[j : j + size - i] += mass - higher
    if near < size:  # all the smaller ones at once, since the sum lies less than half a cell above the larger
        for large, small in ((a, b), (b, a)):
            before = np.zeros(size)
            before[near:] = small[: size - near]
            higher = large * lfilter([exp(-near * width) / expm1(width)], [1.0, -exp(-width)], before)
            out[1 : size + 1] += higher
            out[:size] += large * np.cumsum(before) - higher
    return out
