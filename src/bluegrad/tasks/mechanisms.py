"""Mechanisms by the names of the command line. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bluegrad import _checks, accounting, optimize, score, strategy
from bluegrad.mechanism import Mechanism
from bluegrad.participation import Participation
from bluegrad.strategy import Strategy
from bluegrad.workload import PrefixSum, Workload


@dataclass(frozen=True)
class Family:
    """A mechanism of the command line: its parameter's name (None: it has none), its maker and its optimiser."""

    parameter: str | None
    make: Callable[[int, float], Strategy]
    best: Callable[[Workload, Participation], Strategy] | None


FAMILIES = {
    "dp-sgd": Family(None, lambda steps, _: strategy.identity(steps), None),
    "lambda-cgd": Family("lam", strategy.lambda_cgd, optimize.lambda_cgd),
    "nu-dp-ftrl": Family("nu", strategy.nu_dp_ftrl, optimize.nu_dp_ftrl),
    "square-root": Family(None, lambda steps, _: strategy.square_root(PrefixSum(steps)), None),
}


def build_strategy(name: str, parameter: float | None, participation: Participation) -> Strategy:
    """The named strategy over the participation's steps.

    Args:
        name: "dp-sgd", "lambda-cgd", "nu-dp-ftrl" or "square-root".
        parameter: lam or nu; None takes the one that minimises `rmse` on the prefix sum.
        participation: gives steps and sensitivity.

    Returns:
        The strategy.

    Raises:
        ValueError: unknown name, a parameter out of range, or one for a mechanism that has none.
        Unsupported: no sensitivity rule for the participation.
    """
    family = FAMILIES[_checks.choice("mechanism", name, tuple(FAMILIES))]
    if family.best is None:
        if parameter is not None:
            raise _checks.fail("parameter", parameter, f"mechanism {name!r} has none", "leave it at auto")
        return family.make(participation.steps, 0.0)
    if parameter is None:
        return family.best(PrefixSum(participation.steps), participation)
    return family.make(participation.steps, parameter)


@dataclass(frozen=True)
class PlanRow:
    """What a mechanism costs, for one line of a plan; errors in units of the clip norm, prefix-sum workload."""

    name: str
    mechanism: Mechanism
    rmse: float
    max_error: float

    @property
    def noise(self) -> float:
        """RMSE at the calibrated noise multiplier: what mechanisms are ranked by."""
        return self.rmse * self.mechanism.noise_multiplier

    @property
    def parameter(self) -> str:
        """The family's parameter with its value, or nothing."""
        name = FAMILIES[self.name].parameter
        return "" if name is None else f"{name} {self.mechanism.strategy.describe()['parameters'][name]:.4g}"


def plan(participation: Participation, *, epsilon: float, delta: float) -> list[PlanRow]:
    """Every mechanism calibrated to (epsilon, delta), the one of least noise first.

    Args:
        participation: steps, and which of them a unit may join.
        epsilon: privacy budget.
        delta: failure probability.

    Returns:
        One row a mechanism, by rising `noise`.

    Raises:
        ValueError: epsilon or delta out of range.
        Unsupported: no rule for a mechanism under this participation.
    """
    workload = PrefixSum(participation.steps)
    rows = []
    for name in FAMILIES:
        c = build_strategy(name, None, participation)
        mechanism = accounting.calibrate(c, participation, epsilon=epsilon, delta=delta)
        rows.append(
            PlanRow(
                name,
                mechanism,
                rmse=score.rmse(c, workload, participation),
                max_error=score.max_error(c, workload, participation),
            )
        )
    return sorted(rows, key=lambda row: row.noise)
