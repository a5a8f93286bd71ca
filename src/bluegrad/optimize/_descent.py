"""Limited-memory BFGS for smooth losses that may overflow: a point where they do is no descent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isfinite

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array]]
Progress = Callable[[int, float], object]

# Relative excess of the squared loss, as the quadratic model foretells it, below which descent has converged.
TOLERANCE = 1e-12
_IN_A_ROW = 3
# Descent that gains less than this many tolerances over so many steps has run into rounding, a kink or a flat valley:
# it ends, and has converged where the model foretells no more than the last.
_STALLED, _WINDOW, _ROUNDING = 10.0, 20, 1e-8
# A value may rise by this much, relative, and still count as rounding.
_SLACK = 1e-13
_MEMORY = 30
_TRIALS = 40


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: point, log of the squared loss, steps, and whether the stopping rule was met."""

    x: Array
    value: float
    iterations: int
    converged: bool


def descend(
    function: Function,
    start: Array,
    *,
    limit: int = 5000,
    tolerance: float = TOLERANCE,
    progress: Progress | None = None,
) -> Descent:
    """Minimise f = log of a squared loss by L-BFGS with a weak Wolfe line search.

    Stops when -g . p, twice the decrease that the quadratic model foretells, is below `tolerance` three times in a
    row: a rule that knows no scale of x. Where rounding doesn't allow that, stops when it gains nothing any more.

    Args:
        function: x -> (f, gradient); f may be infinite or nan where x is out of reach.
        start: where f is finite.
        limit: most iterations.
        tolerance: of the stopping rule.
        progress: called with iteration and loss exp(f / 2).
    """
    x = start
    value, gradient = function(x)
    assert isfinite(value), "descent starts within reach"
    pairs: list[tuple[Array, Array, float]] = []
    quiet, values = 0, [value]
    for iteration in range(limit):
        if progress is not None:
            progress(iteration, exp(0.5 * value))
        direction = -_inverse_hessian(pairs, gradient)
        slope = float(gradient @ direction)
        quiet = quiet + 1 if -slope <= tolerance else 0
        if quiet >= _IN_A_ROW or not gradient.any():
            return Descent(x, value, iteration, True)
        if len(values) > _WINDOW and values[-1 - _WINDOW] - value <= _STALLED * tolerance:
            return Descent(x, value, iteration, -slope <= _ROUNDING)
        found = _line_search(function, x, value, direction, slope, 1.0 if pairs else 0.1 / (1.0 + (-slope) ** 0.5))
        if found is None:
            if not pairs or -slope <= _ROUNDING:
                return Descent(x, value, iteration, -slope <= _ROUNDING)
            pairs = []  # the model misled: start it anew from steepest descent
            values.append(value)
            continue
        moved, value, after = found
        values.append(value)
        step, change = moved - x, after - gradient
        curvature = float(step @ change)
        if curvature > 0.0:
            pairs = [*pairs[1 - _MEMORY :], (step, change, curvature)]
        x, gradient = moved, after
    return Descent(x, value, limit, False)


def _inverse_hessian(pairs: list[tuple[Array, Array, float]], gradient: Array) -> Array:
    """Two-loop recursion: the inverse Hessian of the model times the gradient."""
    out, weights = gradient.copy(), []
    for step, change, curvature in reversed(pairs):
        weight = float(step @ out) / curvature
        out -= weight * change
        weights.append(weight)
    if pairs:
        _, change, curvature = pairs[-1]
        out *= curvature / float(change @ change)
    for (step, change, curvature), weight in zip(pairs, reversed(weights)):
        out += (weight - float(change @ out) / curvature) * step
    return out


def _line_search(
    function: Function, x: Array, value: float, direction: Array, slope: float, size: float
) -> tuple[Array, float, Array] | None:
    """A step of sufficient decrease and curvature by bisection (Lewis and Overton), or None."""
    if slope >= 0.0:
        return None
    low, high, best = 0.0, np.inf, None
    slack = _SLACK * max(1.0, abs(value))
    for _ in range(_TRIALS):
        point = x + size * direction
        f, gradient = function(point)
        if not (isfinite(f) and f <= value + 1e-4 * size * slope + slack and np.isfinite(gradient).all()):
            high = size
        else:
            best = (point, f, gradient)
            if float(gradient @ direction) >= 0.9 * slope:
                return best
            low = size
        size = 0.5 * (low + high) if isfinite(high) else 2.0 * size
        if isfinite(high) and high - low <= 1e-14 * high:
            break
    return best
