"""Proposals and ceilings for balls-in-bins, chosen from pilot samples that no bound is computed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from scipy.optimize import brentq

from bluegrad.accounting._bins import Array, Bins
from bluegrad.accounting._excess import Proposal, excess_add, excess_remove
from bluegrad.accounting._weights import Weights, draw_add, draw_remove

# Ceilings to choose from, in units of the mean weight times the square root of the number of samples.
_CEILINGS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# A bound within this factor of its estimate takes no more samples.
_ENOUGH = 1.035
# Charges as fractions of the one that just reaches epsilon, their weights, and the weight of the lift.
_SHAPES = (
    ((1.0,), (1.0,), 0.0),
    ((0.8,), (1.0,), 0.0),
    ((0.68,), (1.0,), 0.0),
    ((0.8, 0.55), (0.6, 0.4), 0.0),
    ((0.9, 0.6), (0.4, 0.3), 0.3),
    ((0.7, 0.5), (0.4, 0.3), 0.3),
)


@dataclass(frozen=True)
class Shape:
    """A family of proposals over noise scales: charges in units of the one that just reaches epsilon."""

    fractions: tuple[float, ...]
    weights: tuple[float, ...]
    lift: float

    def at(self, bins: Bins, scale: float, epsilon: float) -> Proposal:
        """The proposal for one scale."""
        charge = reach(bins, scale, epsilon, bins.matrix[bins.count // 2])
        charges: dict[float, float] = {}
        for fraction, weight in zip(self.fractions, self.weights):
            c = max(1.5, round(2.0 * fraction * charge) / 2.0)
            charges[c] = charges.get(c, 0.0) + weight
        lifts = (reach(bins, scale, epsilon, bins.matrix.mean(axis=1)),) if self.lift else ()
        return Proposal(tuple(charges), tuple(charges.values()), lifts, (self.lift,) if self.lift else ())


@dataclass(frozen=True)
class Plan:
    """How one bound is going to be computed, and what it is expected to be."""

    shape: Shape
    proposal: Proposal
    ceiling: float
    bet: float
    estimate: float
    expected: float
    count: int


SHAPES = tuple(Shape(*parts) for parts in _SHAPES)
NOTHING = Proposal((), ())
# Below the typical likelihood ratio: the field lowered as a whole.
LOWERED = Shape((), (), 1.0)


def reach(bins: Bins, scale: float, level: float, direction: Array) -> float:
    """Multiple a of a direction's move of the field at which L = level; 0 where L has gone past it at rest."""
    move, square = scale * scale * direction, scale * scale * bins.squares

    def gap(a: float) -> float:
        x = a * move - 0.5 * square
        top = float(x.max())
        return top + log(float(np.exp(x - top).mean())) - level

    sign = 1.0 if level > 0.0 else -1.0
    if sign * gap(0.0) >= 0.0:
        return 0.0
    end = sign
    while sign * gap(end) < 0.0:
        end *= 2.0
    return float(brentq(gap, 0.0, end, rtol=1e-6))


def lowered(bins: Bins, scale: float, epsilon: float) -> Proposal:
    """Proposal for the direction in which L is to be small."""
    a = reach(bins, scale, -epsilon, bins.matrix.mean(axis=1))
    return Proposal((), (), (a, 0.5 * a), (0.8, 0.2))


@dataclass(frozen=True)
class Budget:
    """Samples of a bound, pilot samples to prepare it, and log(1 / failure probability) of one direction."""

    count: int
    pilot: int
    surprise: float


def choose_remove(
    bins: Bins, scale: float, epsilon: float, shapes: tuple[Shape, ...], budget: Budget, seed: list[int]
) -> Plan:
    """The shape and the ceiling of least expected bound on E_Q[(e^L - e^epsilon)+]."""

    def plan(shape: Shape, multiples: tuple[float, ...]) -> Plan:
        proposal = shape.at(bins, scale, epsilon)
        weights = draw_remove(bins, scale, epsilon, proposal, budget.pilot, seed)
        return _ceiling(weights, weights.mean, budget, shape, proposal, multiples,
                        lambda c: excess_remove(bins, scale, epsilon, proposal, c, rough=True))  # fmt: skip

    best = shapes[0]
    if len(shapes) > 1:
        # by the width of the bound relative to its estimate: a proposal that misses a part estimates too little
        best = min((plan(shape, _CEILINGS[1::2]) for shape in shapes), key=lambda p: p.expected / p.estimate).shape
    return plan(best, _CEILINGS)


def choose_add(bins: Bins, scale: float, epsilon: float, floor: float, budget: Budget, seed: list[int]) -> Plan:
    """The same for E_Q[(1 - e^(epsilon + L))+]; a bound far below `floor` needn't be sharp."""
    proposal = lowered(bins, scale, epsilon)
    weights = draw_add(bins, scale, epsilon, proposal, budget.pilot, seed)
    return _ceiling(weights, max(weights.mean, 0.1 * floor), budget, LOWERED, proposal, _CEILINGS,
                    lambda c: excess_add(bins, scale, epsilon, proposal, c, rough=True))  # fmt: skip


def _ceiling(
    weights: Weights, unit: float, budget: Budget, shape: Shape, proposal: Proposal, multiples: tuple[float, ...],
    excess: Callable[[float], float],
) -> Plan:  # fmt: skip
    """The best ceiling; with a quarter of the samples where these are enough for a bound within _ENOUGH."""
    mean = max(weights.mean, 1e-300)
    best = Plan(shape, proposal, 1.0, 1.0, mean, inf, budget.count)
    for count in (budget.count // 4, budget.count):
        for multiple in multiples:
            ceiling = multiple * sqrt(count) * unit
            cut = weights.truncated(ceiling)
            moment = max(cut.second_moment, unit * unit)
            if not (0.0 < moment < inf and 0.0 < ceiling < inf):  # pilot weights out of floating point: any plan holds
                continue
            bet = min(1.0 / ceiling, sqrt(2.0 * budget.surprise / (count * moment)))
            expected = cut.mean + budget.surprise / (count * bet) + 0.5 * bet * moment + excess(ceiling)
            if expected < best.expected:
                best = Plan(shape, proposal, ceiling, bet, mean, expected, count)
        if best.expected <= _ENOUGH * max(mean, unit):
            break
    return best
