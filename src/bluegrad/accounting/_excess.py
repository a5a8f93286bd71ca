"""What truncated weights leave out: bounds on the mean of the excess, without sampling.

Weights of importance sampling have no useful bound: a sample that lifts many bins a little has a tiny density
under proposals that lift one bin much. So weights are truncated at a ceiling, and the mean of what is cut off is
bounded here. With proposal density ratio T/Q >= sum_c a_c mean_i e^(c u_i - c^2 S_ii / 2) the excess is

    (mean_i e^(u_i - S_ii/2) - e^epsilon - ceiling T/Q)+  <=  (mean_i psi_i(u_i) - e^epsilon)+,
    psi_i(u) = e^(u - S_ii/2) - ceiling sum_c a_c e^(c u - c^2 S_ii / 2),

again a mean of functions of one bin each, and bounded ones. Its expectation follows from (y)+ <= e^(t y - 1) / t
and a Hölder inequality for Gaussian vectors (`Mode`), conditionally on the mean of the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from bluegrad.accounting._bins import Array, Bins, Mode

# Standard deviations of a bin that the quadrature covers; the rest is added by its bound.
_REACH = 12.0
# Nodes and weights on (-1, 1), for a rough bound (first) and for one that counts: over a bin, over its conditioning.
_INNER = (np.polynomial.legendre.leggauss(160), np.polynomial.legendre.leggauss(400))
_OUTER = (np.polynomial.legendre.leggauss(40), (np.linspace(-1.0, 1.0, 161), np.full(161, 1.0 / 80.0)))
# Relative allowance for the quadratures, whose integrands are smooth at the scale of their nodes.
_ALLOWANCE = 1.05
# Exponents t to choose from, in units of the largest that matters.
_STEPS = np.geomspace(1e-2, 1e3, 33)
# Values of h that are treated at once.
_ROWS = 20


@dataclass(frozen=True)
class Proposal:
    """Mixture of Normal(c m_i, .) over bins i and charges c, and of Normal(a mean of m, .) over lifts a.

    Args:
        charges: c, positive half integers.
        weights: of the charges.
        lifts: a, of either sign; 0 is Q itself.
        lift_weights: of the lifts; all weights together sum to 1.
    """

    charges: tuple[float, ...]
    weights: tuple[float, ...]
    lifts: tuple[float, ...] = ()
    lift_weights: tuple[float, ...] = ()

    def lift_density(self, mean: Array, square: float) -> Array:
        """The lifts' part of T/Q where the field's mean over the bins is `mean`, of variance `square`."""
        total = np.zeros_like(mean)
        for a, w in zip(self.lifts, self.lift_weights):
            total += w * np.exp(np.minimum(a * mean - 0.5 * a * a * square, 600.0))
        return total


def excess_remove(
    bins: Bins, scale: float, epsilon: float, proposal: Proposal, ceiling: float, *, rough: bool = False
) -> float:
    """Bound on E_Q[(e^L - e^epsilon - ceiling T/Q)+], e^L the likelihood ratio; `rough`: one bin stands for all."""
    kind = _Remove(epsilon, proposal, ceiling)
    return min(_excess(bins, mode, scale, kind, rough) for mode in bins.modes)


def excess_add(
    bins: Bins, scale: float, epsilon: float, proposal: Proposal, ceiling: float, *, rough: bool = False
) -> float:
    """Bound on E_Q[(1 - e^epsilon e^L - ceiling T/Q)+]; ceiling 0 gives a bound on delta(Q || P) itself."""
    kind = _Add(epsilon, proposal, ceiling)
    return min(_excess(bins, mode, scale, kind, rough) for mode in bins.modes)


@dataclass(frozen=True)
class _Remove:
    epsilon: float
    proposal: Proposal
    ceiling: float
    sign = 1.0

    def threshold(self, lift: Array) -> Array:
        return exp(self.epsilon) + self.ceiling * lift

    def site(self, u: Array, square: Array) -> Array:
        """psi at field u of bins with variance `square` (before conditioning)."""
        value = np.exp(np.minimum(u - 0.5 * square, 600.0))
        for c, w in zip(self.proposal.charges, self.proposal.weights):
            value = value - self.ceiling * w * np.exp(np.minimum(c * u - 0.5 * c * c * square, 650.0))
        return value

    def peak(self, square: Array) -> Array:
        """Upper bound on psi over all u: the least of the maxima with one charge each, in closed form."""
        best = np.full_like(square, inf)
        for c, w in zip(self.proposal.charges, self.proposal.weights):
            if self.ceiling * w > 0.0:
                top = 0.5 * c * square - log(self.ceiling * w * c) / (c - 1.0)  # u - square / 2 at the maximum
                best = np.minimum(best, np.exp(np.minimum(top, 600.0)) * (1.0 - 1.0 / c))
        return best


@dataclass(frozen=True)
class _Add:
    epsilon: float
    proposal: Proposal
    ceiling: float
    sign = -1.0

    def threshold(self, lift: Array) -> Array:
        return self.ceiling * lift - 1.0

    def site(self, u: Array, square: Array) -> Array:
        return -np.exp(np.minimum(self.epsilon + u - 0.5 * square, 600.0))

    def peak(self, square: Array) -> Array:
        """Upper bound on the function of one bin."""
        return np.zeros_like(square)


def _excess(bins: Bins, mode: Mode, scale: float, kind: _Remove | _Add, rough: bool) -> float:
    """E over h of the bound on E[(mean_i site_i - threshold)+ | h], plus what lies beyond the reach of h."""
    load, rest = scale * mode.load, scale * np.sqrt(mode.rest)
    square, mean_square = scale * scale * bins.squares, scale * scale * bins.mean_square
    conditioned = bool(load.any())
    reach = _REACH + float(load.max())
    h, weights = np.zeros(1), np.ones(1)
    if conditioned:
        nodes, widths = _OUTER[0 if rough else 1]
        h = reach * nodes
        weights = reach * widths * np.exp(-0.5 * h * h) / sqrt(2.0 * pi)
    # unless it is conditioned on, the field's mean isn't known, and the lifts have to be left out
    lift = kind.proposal.lift_density(sqrt(mean_square) * h, mean_square) if conditioned else np.zeros(1)
    level = kind.threshold(lift)
    shift = h[:, None] * load
    which = np.array([bins.count // 2]) if rough else np.arange(bins.count)
    bound = _conditional(kind, square, shift, rest, mode.exponent, level, which)
    if not conditioned:
        return _ALLOWANCE * float(bound[0])
    if isinstance(kind, _Remove):
        bound = np.minimum(bound, np.exp(shift - 0.5 * load * load).mean(axis=1))  # E[e^L | h]
        beyond = float((ndtr(load - reach) + ndtr(-load - reach)).mean())
    else:  # a mean of exponentials is at least the exponential of the mean
        jensen = -level - np.exp(np.minimum(kind.epsilon + shift.mean(axis=1) - 0.5 * square.mean(), 600.0))
        bound = np.minimum(bound, np.maximum(jensen, 0.0))
        beyond = 2.0 * float(ndtr(-reach))
    return _ALLOWANCE * float(weights @ bound) + beyond


def _conditional(
    kind: _Remove | _Add, square: Array, shift: Array, rest: Array, p: float, level: Array, which: NDArray[np.int64]
) -> Array:
    """For each row of `shift` the least over t of e^(-t level - 1) / t * prod_i (E e^(p t site_i / b))^(1/p).

    It bounds E (mean_i site_i - level)+. The bins `which` stand for all.
    """
    b, peak = len(square), kind.peak(square)
    nodes, widths = _INNER[0 if len(which) == 1 else 1]
    z = _REACH * nodes
    log_weights = np.log(_REACH * widths) - 0.5 * z * z - 0.5 * log(2.0 * pi)

    def log_bound(rows: list[int], bins: NDArray[np.int64], t: Array) -> Array:
        """Logarithms of the bound for t of shape (rows, m), averaged over `bins`; shape (rows, m)."""
        site = kind.site(shift[rows][:, bins, None] + rest[bins, None] * z, square[bins, None])  # (rows, bins, nodes)
        factor = (p / b) * t[:, None, :]
        terms = factor[:, :, :, None] * site[:, :, None, :] + log_weights  # (rows, bins, m, nodes)
        top = terms.max(axis=3, keepdims=True)
        inside = top[..., 0] + np.log(np.exp(terms - top).sum(axis=3))
        beyond = factor * np.maximum(peak[bins], 0.0)[:, None] + log(2.0) + float(log_ndtr(-_REACH))
        mean = np.logaddexp(inside, beyond).mean(axis=1)
        return np.asarray(mean * (b / p) - t * level[rows, None] - 1.0 - np.log(t))

    out = np.zeros(len(shift))
    grid = _STEPS * max(1.0, b / (p * max(float(peak.max()), 1.0)))
    open_rows = np.flatnonzero(peak.mean() > level).tolist()
    for start in range(0, len(open_rows), _ROWS):
        rows = open_rows[start : start + _ROWS]
        coarse = log_bound(rows, np.array([b // 2]), np.tile(grid, (len(rows), 1)))
        best = coarse.min(axis=1)
        if len(which) > 1:  # any t gives a bound
            chosen = grid[coarse.argmin(axis=1)]
            best = np.array([log_bound([row], which, t[None, None])[0, 0] for row, t in zip(rows, chosen)])
        out[rows] = np.exp(np.minimum(best, 600.0))
    return out
