"""Mechanisms by the names of the command line. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from bluegrad import _checks, accounting, optimize, score, strategy
from bluegrad._checks import Unsupported
from bluegrad.mechanism import Mechanism
from bluegrad.participation import Participation
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import DENSE_STEPS
from bluegrad.workload import PrefixSum

Maker = Callable[[Participation, float], Strategy]


@dataclass(frozen=True)
class Family:
    """A mechanism of the command line.

    Args:
        make: the strategy for a participation and the parameter.
        parameter: the parameter's name, None where there is none.
        whole: whether the parameter is a whole number.
        fast: most steps for which it is found in seconds.
        best: the parameter to take where none is given: of least RMSE on the prefix sum, where that is found fast.
    """

    make: Maker
    parameter: str | None = None
    whole: bool = False
    best: Callable[[Maker, Participation], float] | None = None
    fast: float = inf


def _lam(make: Maker, law: Participation) -> float:
    return float(optimize.lambda_cgd(PrefixSum(law.steps), law).describe()["parameters"]["lam"])


def _nu(make: Maker, law: Participation) -> float:
    return float(optimize.nu_dp_ftrl(PrefixSum(law.steps), law).describe()["parameters"]["nu"])


def _at_most(most: int) -> Callable[[Maker, Participation], float]:
    """So many bands, fewer where the steps an epoch are fewer."""
    return lambda make, law: min(most, getattr(law, "separation", law.steps))


def _power_of_two(make: Maker, law: Participation) -> float:
    return _least(make, law, [bands for bands in (1, 2, 4, 8, 16, 32, 64) if bands <= law.steps])


def _least(make: Maker, law: Participation, values: Sequence[float]) -> float:
    return min(values, key=lambda value: score.rmse(make(law, value), PrefixSum(law.steps), law))


def _of_steps(make: Callable[[int], Strategy]) -> Family:
    return Family(lambda law, _: make(law.steps))


def _with(
    parameter: str, make: Callable[[int, float], Strategy], best: Callable[[Maker, Participation], float]
) -> Family:
    return Family(lambda law, value: make(law.steps, value), parameter, best=best)


def _rooted(make: Callable[[PrefixSum, int], Strategy]) -> Family:
    return Family(lambda law, bands: make(PrefixSum(law.steps), int(bands)), "bands", True, _power_of_two)


def _optimized(make: Callable[[PrefixSum, Participation, int], Strategy], parameter: str, usual: int) -> Family:
    return Family(lambda law, value: make(PrefixSum(law.steps), law, int(value)), parameter, True, _at_most(usual))


def _restarted(make: Callable[[int], Strategy], longest: float = inf) -> Family:
    """Restarts whose repetitions aren't longer than a stream of theirs allows."""

    def stamped(law: Participation, stamps: float) -> Strategy:
        if law.steps % int(stamps):
            raise _checks.fail("stamps", int(stamps), f"must divide steps={law.steps}", "take a divisor, or auto")
        return strategy.stamped(make(law.steps // int(stamps)), int(stamps))

    def best(make: Maker, law: Participation) -> float:
        n = law.steps
        return _least(make, law, [s for s in range(1, n + 1) if n % s == 0 and n // s <= longest])

    return Family(stamped, "stamps", True, best)


def _root(n: int) -> Strategy:
    return strategy.square_root(PrefixSum(n))


FAMILIES = {
    "dp-sgd": _of_steps(strategy.identity),
    "lambda-cgd": _with("lam", strategy.lambda_cgd, _lam),
    "lambda-cgd-normalized": _with("lam", lambda n, lam: strategy.column_normalized(strategy.lambda_cgd(n, lam)), _lam),
    "nu-dp-ftrl": _with("nu", strategy.nu_dp_ftrl, _nu),
    "nu-dp-ftrl-buffered": _with("nu", lambda n, nu: optimize.approximated(strategy.nu_dp_ftrl(n, nu)), _nu),
    "square-root": _of_steps(_root),
    "square-root-normalized": _of_steps(lambda n: strategy.column_normalized(_root(n))),
    "square-root-buffered": _of_steps(lambda n: optimize.approximated(_root(n))),
    "bsr": _rooted(strategy.banded_square_root),
    "bisr": _rooted(strategy.banded_inverse_square_root),
    "toeplitz": _optimized(optimize.toeplitz, "bands", 16),
    "banded-inverse": _optimized(optimize.banded_inverse, "bands", 8),
    "buffered": _optimized(optimize.buffered_toeplitz, "buffers", 4),
    "banded": replace(_optimized(optimize.banded, "bands", 16), fast=10_000),
    "dense": Family(lambda law, _: optimize.dense(PrefixSum(law.steps), law), fast=1000),
    "tree-online": _restarted(strategy.tree_aggregation),
    "tree-full": _restarted(partial(strategy.tree_aggregation, decoder="full")),
    "fourier-plain": _restarted(strategy.fourier, DENSE_STEPS),
    "fourier-optimal": _restarted(partial(strategy.fourier, decoder="optimal"), DENSE_STEPS),
    "full-batch": _of_steps(strategy.full_batch),
}


STORED = ".npz"


def check_name(name: str) -> str:
    """The name of a family or of a strategy file.

    Raises:
        ValueError: neither.
    """
    return name if name.endswith(STORED) else _checks.choice("mechanism", name, tuple(FAMILIES))


def _stored(path: str, parameter: float | None, participation: Participation) -> Strategy:
    """A strategy that `bluegrad optimize` or `save_strategy` wrote, if it is as long as the run."""
    if parameter is not None:
        raise _checks.fail("parameter", parameter, "a stored strategy has none", "leave it at auto")
    stored = strategy.load_strategy(path)
    if stored.steps != participation.steps:
        raise _checks.fail(
            "mechanism", path, f"has {stored.steps} steps, the run {participation.steps}",
            "optimise a strategy for the run's number of steps",
        )  # fmt: skip
    return stored


def choose_parameter(name: str, parameter: float | None, participation: Participation) -> float:
    """The given parameter if the mechanism has one, or its own choice; 0 where it has none.

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
        name: one of FAMILIES, or the .npz file of a strategy.
        parameter: lam, nu, bands or stamps; None leaves the choice to the family.
        participation: gives steps and sensitivity.

    Returns:
        The strategy.

    Raises:
        ValueError: unknown name, a parameter out of range, one for a mechanism that has none, or a file that isn't a
            strategy's or has another number of steps.
        Unsupported: no sensitivity rule for the participation.
    """
    if check_name(name).endswith(STORED):
        return _stored(name, parameter, participation)
    chosen = choose_parameter(name, parameter, participation)
    return FAMILIES[name].make(participation, chosen)


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
    slow: bool = False,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Plan:
    """Every mechanism calibrated to (epsilon, delta), the one of least noise first.

    Args:
        participation: steps, and which of them a unit may join.
        epsilon: privacy budget.
        delta: failure probability.
        slow: include mechanisms whose optimum takes minutes at so many steps.
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
        if participation.steps > FAMILIES[name].fast and not slow:
            left_out[name] = f"takes long to find at {participation.steps} steps (--slow)"
            continue
        try:
            value = choose_parameter(name, None, participation)
            c = FAMILIES[name].make(participation, value)
            mechanism = accounting.calibrate(c, participation, epsilon=epsilon, delta=delta)
            rmse, largest = score.rmse(c, workload, participation), score.max_error(c, workload, participation)
        except Unsupported as error:
            left_out[name] = str(error)
            continue
        rows.append(PlanRow(name, value, mechanism, rmse, largest))
    return Plan(sorted(rows, key=lambda row: row.noise), left_out)
