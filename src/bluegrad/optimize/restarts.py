"""The best number of restarts of a strategy that gains by them: tree, Fourier, single-epoch optima."""

from __future__ import annotations

from collections.abc import Callable

from bluegrad import _checks
from bluegrad.optimize._problem import LOSSES
from bluegrad.participation import Participation
from bluegrad.strategy import Strategy, stamped
from bluegrad.workload import Workload


def stamps(
    make: Callable[[int], Strategy], workload: Workload, participation: Participation, *, loss: str = "rmse"
) -> Strategy:
    """The stamped strategy of least loss over every number of restarts that divides the steps.

    Args:
        make: one repetition's strategy from its number of steps, such as bluegrad.tree_aggregation.
        workload: A, n steps.
        participation: gives the sensitivity.
        loss: "rmse" or "max_error".

    Returns:
        `bluegrad.stamped(make(n / s), s)` for the best s; make(n) where s = 1.

    Raises:
        ValueError: unknown loss, or different numbers of steps.
        Unsupported: no sensitivity rule for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum, tree_aggregation
        >>> stamps(tree_aggregation, PrefixSum(64), FixedEpochs(64, 4)).repetition()[1]
        4

    Source: arXiv 2211.06530, section 5.
    """
    value = LOSSES[_checks.choice("loss", loss, tuple(LOSSES))]
    n = workload.steps
    every = [stamped(make(n // s), s) for s in range(1, n + 1) if n % s == 0]
    return min(every, key=lambda strategy: value(strategy, workload, participation))
