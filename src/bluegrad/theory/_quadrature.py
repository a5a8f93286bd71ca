"""Means over all frequencies, by Gauss-Legendre panels that grow away from where an integrand is narrow."""

from __future__ import annotations

from functools import cache
from math import pi

import numpy as np

from bluegrad.strategy.base import Array

_NODES = 20
# Integrands here are no more singular at 0 than w^-p, p < 1: what lies below this doesn't count.
_LOWEST = 1e-150
# Distances from pi can't be told more finely in float64 without being exact in them.
_LOWEST_TOP = 1e-7


@cache
def grid(low: float, high: float, widest: float) -> tuple[Array, Array]:
    """Nodes in (0, pi) and weights whose sum is 1: the mean over (-pi, pi) of an even function.

    Args:
        low: width of the narrowest feature at frequency 0.
        high: the same at frequency pi.
        widest: largest panel, such that what oscillates is resolved.

    Returns:
        Nodes and weights, shape (nodes,) each, read-only.
    """
    bottom = _graded(max(low, _LOWEST), widest)
    top = pi - _graded(max(high, _LOWEST_TOP), widest)[::-1]
    edges = np.concatenate([bottom, top[1:]])
    x, weight = np.polynomial.legendre.leggauss(_NODES)
    half = np.diff(edges) / 2.0
    nodes = (edges[:-1] + half)[:, None] + half[:, None] * x
    weights = half[:, None] * weight / pi
    out = nodes.ravel(), weights.ravel()
    for array in out:
        array.flags.writeable = False
    return out


def _graded(low: float, widest: float) -> Array:
    """Edges 0, low, 2 low, ... up to pi / 2, none further apart than `widest`."""
    edges = [0.0]
    at = min(low, pi / 2)
    while at < pi / 2 * (1 - 1e-9):
        edges.append(at)
        at += min(max(at, low), widest)
    edges.append(pi / 2)
    if len(edges) > 2 and edges[-1] - edges[-2] < 1e-3 * edges[-2]:
        del edges[-2]
    return np.array(edges)
