"""Mechanisms by the names of the command line. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from bluegrad import _checks, accounting, optimize, score, strategy
from bluegrad._checks import Unsupported
from bluegrad.mechanism import Mechanism
from bluegrad.participation import Participation
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import DENSE_STEPS
from bluegrad.workload import PrefixSum

Maker = Callable[[int, float], Strategy]


@dataclass(frozen=True)
class Family:
    """A mechanism of the command line.

    Args:
        make: the strategy from steps and parameter.
        parameter: the parameter's name, None where there is none.
        whole: whether the parameter is a whole number.
        best: the parameter of least RMSE on the prefix sum under a participation.
    """

    make: Maker
    parameter: str | None = None
    whole: bool = False
    best: Callable[[Maker, Participation], float] | None = None


def _lam(make: Maker, participation: Participation) -> float:
    best = optimize.lambda_cgd(PrefixSum(participation.steps), participation)
    return float(best.describe()["parameters"]["lam"])


def _nu(make: Maker, participation: Participation) -> float:
    best = optimize.nu_dp_ftrl(PrefixSum(participation.steps), participation)
    return float(best.describe()["parameters"]["nu"])


def _bands(make: Maker, participation: Participation) -> float:
    """The best power of two of bands, few enough to be kept."""
    tried = [bands for bands in (1, 2, 4, 8, 16, 32, 64) if bands <= participation.steps]
    return _least(make, participation, tried)


def _stamps(longest: float, make: Maker, participation: Participation) -> float:
    """The best number of restarts whose repetitions aren't longer than a stream of theirs allows."""
    n = participation.steps
    return _least(make, participation, [s for s in range(1, n + 1) if n % s == 0 and n // s <= longest])


def _least(make: Maker, participation: Participation, values: Sequence[float]) -> float:
    n = participation.steps
    return min(values, key=lambda value: score.rmse(make(n, value), PrefixSum(n), participation))


def _stamped(make: Callable[[int], Strategy], n: int, stamps: float) -> Strategy:
    if n % int(stamps):
        raise _checks.fail("stamps", int(stamps), f"must divide steps={n}", "take a divisor, or auto")
    return strategy.stamped(make(n // int(stamps)), int(stamps))


def _restarted(make: Callable[[int], Strategy], longest: float = inf) -> Family:
    return Family(partial(_stamped, make), "stamps", True, partial(_stamps, longest))


FAMILIES = {
    "dp-sgd": Family(lambda n, _: strategy.identity(n)),
    "lambda-cgd": Family(strategy.lambda_cgd, "lam", best=_lam),
    "lambda-cgd-normalized": Family(
        lambda n, lam: strategy.column_normalized(strategy.lambda_cgd(n, lam)), "lam", best=_lam
    ),
    "nu-dp-ftrl": Family(strategy.nu_dp_ftrl, "nu", best=_nu),
    "nu-dp-ftrl-buffered": Family(lambda n, nu: optimize.approximated(strategy.nu_dp_ftrl(n, nu)), "nu", best=_nu),
    "square-root": Family(lambda n, _: strategy.square_root(PrefixSum(n))),
    "square-root-normalized": Family(lambda n, _: strategy.column_normalized(strategy.square_root(PrefixSum(n)))),
    "square-root-buffered": Family(lambda n, _: optimize.approximated(strategy.square_root(PrefixSum(n)))),
    "bsr": Family(lambda n, bands: strategy.banded_square_root(PrefixSum(n), int(bands)), "bands", True, _bands),
    "bisr": Family(
        lambda n, bands: strategy.banded_inverse_square_root(PrefixSum(n), int(bands)), "bands", True, _bands
    ),
    "tree-online": _restarted(strategy.tree_aggregation),
    "tree-full": _restarted(partial(strategy.tree_aggregation, decoder="full")),
    "fourier-plain": _restarted(strategy.fourier, DENSE_STEPS),
    "fourier-optimal": _restarted(partial(strategy.fourier, decoder="optimal"), DENSE_STEPS),
    "full-batch": Family(lambda n, _: strategy.full_batch(n)),
}


def choose_parameter(name: str, parameter: float | None, participation: Participation) -> float:
    """The given parameter if the mechanism has one, or the one of least RMSE; 0 where it has none.

    Raises:
        ValueError: unknown name, one for a mechanism that has none, or one that isn't whole where it must be.
        Unsupported: no sensitivity rule for the participation.
    """
    family = FAMILIES[_checks.choice("mechanism", name, tuple(FAMILIES))]
    if family.best is None:
        if parameter is not None:
            raise _checks.fail("parameter", parameter, f"mechanism {name!r} has none", "leave it at auto")
        return 0.0
    if parameter is None:
        return family.best(family.make, participation)
    if family.whole and (parameter < 1 or int(parameter) != parameter):
        fix = "give a whole number of at least 1, or auto"
        raise _checks.fail("parameter", parameter, f"is the number of {family.parameter} of {name!r}", fix)
    return parameter


def build_strategy(name: str, parameter: float | None, participation: Participation) -> Strategy:
    """The named strategy over the participation's steps.

    Args:
        name: one of FAMILIES.
        parameter: lam, nu, bands or stamps; None takes the one that minimises `rmse` on the prefix sum.
        participation: gives steps and sensitivity.

    Returns:
        The strategy.

    Raises:
        ValueError: unknown name, a parameter out of range, or one for a mechanism that has none.
        Unsupported: no sensitivity rule for the participation.
    """
    chosen = choose_parameter(name, parameter, participation)
    return FAMILIES[name].make(participation.steps, chosen)


@dataclass(frozen=True)
class PlanRow:
    """What a mechanism costs, for one line of a plan; errors in units of the clip norm, prefix-sum workload."""

    name: str
    value: float
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
        family = FAMILIES[self.name]
        return "" if family.parameter is None else f"{family.parameter} {self.value:.3g}"

    @property
    def memory(self) -> int:
        """Model copies beyond DP-SGD."""
        return self.mechanism.strategy.memory


@dataclass(frozen=True)
class Plan:
    """Every mechanism at one guarantee, the one of least noise first, and why others aren't there."""

    rows: list[PlanRow]
    left_out: dict[str, str]

    @property
    def frontier(self) -> list[PlanRow]:
        """Rows that no other beats in both memory and noise, by rising memory."""
        best: list[PlanRow] = []
        for row in sorted(self.rows, key=lambda row: (row.memory, row.noise)):
            if not best or row.noise < best[-1].noise:
                best.append(row)
        return best


def plan(
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Plan:
    """Every mechanism calibrated to (epsilon, delta), the one of least noise first.

    Args:
        participation: steps, and which of them a unit may join.
        epsilon: privacy budget.
        delta: failure probability.
        progress: called with a mechanism's name, how many are done and how many there are.

    Returns:
        One row a mechanism, by rising `noise`; mechanisms that can't be planned are left out, with the reason.

    Raises:
        ValueError: epsilon or delta out of range.
    """
    _checks.epsilon(epsilon)
    _checks.delta(delta)
    workload = PrefixSum(participation.steps)
    rows, left_out = [], {}
    for i, name in enumerate(FAMILIES):
        progress(name, i, len(FAMILIES))
        try:
            value = choose_parameter(name, None, participation)
            c = FAMILIES[name].make(participation.steps, value)
            mechanism = accounting.calibrate(c, participation, epsilon=epsilon, delta=delta)
            rmse, largest = score.rmse(c, workload, participation), score.max_error(c, workload, participation)
        except Unsupported as error:
            left_out[name] = str(error)
            continue
        rows.append(PlanRow(name, value, mechanism, rmse, largest))
    return Plan(sorted(rows, key=lambda row: row.noise), left_out)
