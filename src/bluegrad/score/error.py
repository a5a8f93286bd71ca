"""Error of the noise at the model: row norms of B = A N. All float64, unit clip norm, unit noise."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from bluegrad.participation import Participation
from bluegrad.score.contribution import same_steps, sensitivity
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import check_strategy
from bluegrad.workload import Workload

Array = NDArray[np.float64]

# A stream's state of up to this many vectors is followed step by step instead of forming B.
_SHORT_STATE = 64
# Below this many steps B is formed at once: faster than following a state.
_FEW_STEPS = 1024


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
    check_strategy(strategy)
    same_steps("workload", workload.steps, strategy)
    return _errors(strategy, workload)


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


def _errors(strategy: Strategy, workload: Workload) -> Array:
    n = strategy.noise_coefficients()
    if n is not None:
        return workload.row_norms(n)
    inner, repeats = strategy.repetition()
    if repeats > 1:
        repeated = workload.repeated(lambda once: _errors(inner, once), inner.steps)
        if repeated is not None:
            return repeated
    state = workload.init()
    if strategy.steps > _FEW_STEPS and state is not None:
        kept = max(strategy.kept(t) for t in range(strategy.steps))
        if kept <= _SHORT_STATE:
            return _followed(strategy, workload, kept)
    squared = np.zeros(strategy.steps)
    for block in strategy.noise_columns():
        squared += (workload.apply(block) ** 2).sum(axis=1)
    return np.sqrt(squared)


def _followed(strategy: Strategy, workload: Workload, kept: int) -> Array:
    """Row norms of A L by running stream and optimizer on an orthonormal basis of all noise so far.

    Every vector of the joint state is a row of F, shape (state, width). A new normal is a new coordinate; when they run
    out, F is replaced by the triangular factor of F^T: lengths and angles, all that counts, stay.
    """
    state, model_state = strategy.init(), workload.init()
    assert model_state is not None
    width = 4 * (kept + 4) + 32
    used, out = 0, np.empty(strategy.steps)
    for t in range(strategy.steps):
        if used == width:
            triangle = np.asarray(np.linalg.qr(np.array([*state[1], *model_state[1:]]).T, mode="r"))
            used = len(triangle)
            rows = [*np.pad(triangle.T, ((0, 0), (0, width - used)))]  # (state, width)
            state, model_state = (t, tuple(rows[: len(state[1])])), (t, *rows[len(state[1]) :])
        z = np.zeros(width)
        z[used] = 1.0
        used += 1
        noise, state = strategy.step(z, state)
        model, model_state = workload.step(noise, model_state)
        out[t] = sqrt(float(model @ model))
    return out
