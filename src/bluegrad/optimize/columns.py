"""Best banded C with columns of their own, column-normalised: block-wise error and gradient, O(n bands) memory."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from bluegrad import strategy
from bluegrad.optimize import _pattern
from bluegrad.optimize._blocks import BlockedVariances
from bluegrad.optimize._descent import Descent, Progress, descend
from bluegrad.optimize._journal import Journal
from bluegrad.optimize._problem import POWERS, Problem, check_bands, pose, row_loss
from bluegrad.optimize.series import toeplitz
from bluegrad.participation import Participation
from bluegrad.strategy import Strategy
from bluegrad.workload import Workload

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

_LIMIT = 2000
# Of the stopping rule: what is left to gain then is about 1e-7 of the loss, in long horizons the most of the time.
_TOLERANCE = {"rmse": 1e-8, "max_error": 1e-7}
# Earlier powers of the largest error only lead to the last.
_EARLY_TOLERANCE = 1e-5


def banded(
    workload: Workload,
    participation: Participation,
    bands: int,
    *,
    loss: str = "rmse",
    progress: Progress | None = None,
    journal: Journal | None = None,
) -> Strategy:
    """The banded strategy of least loss with a column of its own for every step, all of norm 1.

    With at most `separation` bands no two columns of a pattern overlap, so the sensitivity is sqrt(k) exactly, whatever
    the columns; what is left is to minimise the squared row norms of A C^-1. As a function of C^T C that is convex
    (tr A^T A (C^T C)^-1 for RMSE, the largest row likewise), so descent from the best Toeplitz column can't end in a
    worse valley. Variances are followed block by block of rows: O(n bands) memory, no n x n matrix.

    Args:
        workload: A, n steps.
        participation: SinglePass, FixedEpochs, MinSeparation or CyclicPoisson (bands at most its period).
        bands: number of bands of C, from 1 to the separation (n for one participation); streaming keeps bands - 1
            model copies.
        loss: "rmse" or "max_error"; the latter by power sums of row variances, within n^(1 / 8192) of the optimum.
        progress: called as progress(iteration, value) at every iteration.
        journal: keeps every evaluation in a file, so that an interrupted search continues where it was.

    Returns:
        `bluegrad.banded(columns)`, columns of norm 1, and the record of the search as its `optimization`.

    Raises:
        ValueError: unknown loss, bands outside 1 .. separation, or different numbers of steps.
        Unsupported: another participation, or a workload whose inverse isn't banded and too large to form.

    Example:
        >>> from bluegrad import PrefixSum, SinglePass
        >>> best = banded(PrefixSum(512), SinglePass(512), bands=16)
        >>> round(best.optimization.value, 4), best.optimization.converged
        (4.6994, True)

    Source: arXiv 2306.08153, section 4 (banded matrices); arXiv 2405.15913 (their optimisation at scale).
    """
    problem = pose(workload, participation, loss, progress, journal, amplified=False)
    many = _pattern.participations(problem.law) > 1
    check_bands(problem, bands, problem.law.separation if many else problem.steps, "separation" if many else "steps")
    column = toeplitz(workload, problem.law, bands, loss=loss, journal=journal).coefficients()
    assert column is not None
    fits = np.arange(problem.steps)[:, None] + np.arange(bands) < problem.steps
    free = fits.copy()
    free[:, 0] = False  # the diagonal is 1 before the columns are normalised
    shape = np.zeros((problem.steps, bands))
    shape[:, : len(column)] = column
    x = shape[free]
    descents: list[Descent] = []
    blocked = BlockedVariances(workload, bands)
    for power in POWERS[loss]:
        function = problem.through(partial(_objective, problem, blocked, free, power))
        tolerance = _TOLERANCE[loss] if power == POWERS[loss][-1] else _EARLY_TOLERANCE
        descents.append(descend(function, x, limit=_LIMIT, tolerance=tolerance, progress=progress))
        x = descents[-1].x
    return problem.solved(lambda _: (strategy.banded(_columns(free, x)[0]), descents))


def _columns(free: Mask, x: Array) -> tuple[Array, Array]:
    """Columns of norm 1, shape (steps, bands), and the norms they had."""
    columns = np.zeros(free.shape)
    columns[:, 0] = 1.0
    columns[free] = x
    norms = np.linalg.norm(columns, axis=1, keepdims=True)
    return columns / norms, norms


def _objective(problem: Problem, blocked: BlockedVariances, free: Mask, power: float, x: Array) -> tuple[float, Array]:
    """Log of k times the row loss, and its gradient along the sphere of every column."""
    with np.errstate(all="ignore"):
        columns, norms = _columns(free, x)
        forward = blocked.forward(columns)
        value, weights = row_loss(forward.variances, power)
        if not np.isfinite(value):
            return np.inf, x
        gradient = blocked.backward(forward, weights)
    gradient -= columns * (gradient * columns).sum(axis=1, keepdims=True)
    return value + float(np.log(_pattern.participations(problem.law))), (gradient / norms)[free]
