"""Mechanisms by the names of the command line. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from bluegrad import _checks, accounting, optimize, score, strategy
from bluegrad._checks import Unsupported
from bluegrad.mechanism import Mechanism
from bluegrad.participation import BallsInBins, CyclicPoisson, Participation
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import DENSE_STEPS
from bluegrad.tasks.laws import Sampling
from bluegrad.workload import PrefixSum


class Aim(NamedTuple):
    """What a mechanism is for: a law, and a privacy target where the best parameter depends on it."""

    participation: Participation
    privacy: tuple[float, float] | None = None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.participation.steps

    @property
    def room(self) -> int:
        """Bands beyond which more cost privacy."""
        if isinstance(self.participation, CyclicPoisson):
            return self.participation.period
        if isinstance(self.participation, BallsInBins):
            return self.participation.bins
        return getattr(self.participation, "separation", self.steps)

    def noise(self, c: Strategy) -> float:
        """RMSE of the prefix sum, times the noise multiplier where that isn't the same for all."""
        rmse = score.rmse(c, PrefixSum(self.steps), self.participation)
        if self.privacy is None:
            return rmse
        epsilon, delta = self.privacy
        return rmse * accounting.estimate_multiplier(c, self.participation, epsilon=epsilon, delta=delta)


Maker = Callable[[Aim, float], Strategy]


@dataclass(frozen=True)
class Family:
    """A mechanism of the command line.

    Args:
        make: the strategy for an aim and the parameter.
        parameter: the parameter's name, None where there is none.
        whole: whether the parameter is a whole number.
        fast: most steps for which it is found in seconds.
        best: the parameter to take where none is given: of least noise on the prefix sum, where that is found fast.
    """

    make: Maker
    parameter: str | None = None
    whole: bool = False
    best: Callable[[Maker, Aim], float] | None = None
    fast: float = inf


@lru_cache(maxsize=8)
def _best_lam(aim: Aim) -> float:
    best = optimize.lambda_cgd(PrefixSum(aim.steps), aim.participation, privacy=aim.privacy)
    return float(best.describe()["parameters"]["lam"])


def _lam(make: Maker, aim: Aim) -> float:
    return _best_lam(aim)


@lru_cache(maxsize=8)
def _best_nu(aim: Aim) -> float:
    best = optimize.nu_dp_ftrl(PrefixSum(aim.steps), aim.participation, privacy=aim.privacy)
    return float(best.describe()["parameters"]["nu"])


def _nu(make: Maker, aim: Aim) -> float:
    return _best_nu(aim)


def _at_most(most: int) -> Callable[[Maker, Aim], float]:
    """So many bands, fewer where the steps an epoch are fewer."""
    return lambda make, aim: min(most, aim.room)


def _power_of_two(make: Maker, aim: Aim) -> float:
    most = aim.room if isinstance(aim.participation, CyclicPoisson) else aim.steps
    return _least(make, aim, [bands for bands in _BANDS if bands <= most])


def _least(make: Maker, aim: Aim, values: Sequence[float]) -> float:
    return min(values, key=lambda value: aim.noise(make(aim, value)))


def _of_steps(make: Callable[[int], Strategy]) -> Family:
    return Family(lambda aim, _: make(aim.steps))


def _with(parameter: str, make: Callable[[int, float], Strategy], best: Callable[[Maker, Aim], float]) -> Family:
    return Family(lambda aim, value: make(aim.steps, value), parameter, best=best)


def _rooted(make: Callable[[PrefixSum, int], Strategy]) -> Family:
    return Family(lambda aim, bands: make(PrefixSum(aim.steps), int(bands)), "bands", True, _power_of_two)


def _optimized(make: Callable[..., Strategy], parameter: str, usual: int) -> Family:
    """The best of a family that knows all laws; `make` takes workload, participation, size and privacy."""
    return Family(
        lambda aim, value: make(PrefixSum(aim.steps), aim.participation, int(value), privacy=aim.privacy),
        parameter, True, _at_most(usual),
    )  # fmt: skip


def _restarted(make: Callable[[int], Strategy], longest: float = inf) -> Family:
    """Restarts whose repetitions aren't longer than a stream of theirs allows."""

    def stamped(aim: Aim, stamps: float) -> Strategy:
        if aim.steps % int(stamps):
            raise _checks.fail("stamps", int(stamps), f"must divide steps={aim.steps}", "take a divisor, or auto")
        return strategy.stamped(make(aim.steps // int(stamps)), int(stamps))

    def best(make: Maker, aim: Aim) -> float:
        n = aim.steps
        return _least(make, aim, [s for s in range(1, n + 1) if n % s == 0 and n // s <= longest])

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
    "banded": Family(
        lambda aim, bands: optimize.banded(PrefixSum(aim.steps), aim.participation, int(bands)),
        "bands", True, _at_most(16), fast=10_000,
    ),
    "dense": Family(lambda aim, _: optimize.dense(PrefixSum(aim.steps), aim.participation), fast=1000),
    "tree-online": _restarted(strategy.tree_aggregation),
    "tree-full": _restarted(partial(strategy.tree_aggregation, decoder="full")),
    "fourier-plain": _restarted(strategy.fourier, DENSE_STEPS),
    "fourier-optimal": _restarted(partial(strategy.fourier, decoder="optimal"), DENSE_STEPS),
    "full-batch": _of_steps(strategy.full_batch),
}  # fmt: skip


STORED = ".npz"
# Numbers of bands that are tried where none is given.
_BANDS = (1, 2, 4, 8, 16, 32, 64)


def check_name(name: str) -> str:
    """The name of a family or of a strategy file.

    Raises:
        ValueError: neither.
    """
    return name if name.endswith(STORED) else _checks.choice("mechanism", name, tuple(FAMILIES))


def _stored(path: str, parameter: float | None, steps: int) -> Strategy:
    """A strategy that `bluegrad optimize` or `save_strategy` wrote, if it is as long as the run."""
    if parameter is not None:
        raise _checks.fail("parameter", parameter, "a stored strategy has none", "leave it at auto")
    stored = strategy.load_strategy(path)
    if stored.steps != steps:
        raise _checks.fail(
            "mechanism", path, f"has {stored.steps} steps, the run {steps}",
            "optimise a strategy for the run's number of steps",
        )  # fmt: skip
    return stored


def choose_parameter(name: str, parameter: float | None, aim: Aim) -> float:
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
        return family.best(family.make, aim)
    if family.whole and (parameter < 1 or int(parameter) != parameter):
        fix = "give a whole number of at least 1, or auto"
        raise _checks.fail("parameter", parameter, f"is the number of {family.parameter} of {name!r}", fix)
    return parameter


def build_strategy(
    name: str, parameter: float | None, participation: Participation, privacy: tuple[float, float] | None = None
) -> Strategy:
    """The named strategy over the participation's steps.

    Args:
        name: one of FAMILIES, or the .npz file of a strategy.
        parameter: lam, nu, bands or stamps; None leaves the choice to the family.
        participation: gives steps and sensitivity.
        privacy: (epsilon, delta); needed under balls-in-bins, where the best strategy depends on it.

    Returns:
        The strategy.

    Raises:
        ValueError: unknown name, a parameter out of range, one for a mechanism that has none, or a file that isn't a
            strategy's or has another number of steps.
        Unsupported: no sensitivity rule for the participation.
    """
    if check_name(name).endswith(STORED):
        return _stored(name, parameter, participation.steps)
    aim = Aim(participation, privacy)
    return FAMILIES[name].make(aim, choose_parameter(name, parameter, aim))


def choose_law(name: str, parameter: float | None, sampling: Sampling, privacy: tuple[float, float]) -> Participation:
    """The participation; for cyclic Poisson sampling of a period that isn't given, the one of least noise.

    Fewer groups are amplified more, more groups allow more bands.

    Raises:
        ValueError: as `build_strategy`.
        Unsupported: the mechanism's rounds overlap under every period.
    """
    if sampling.name != "cyclic-poisson" or sampling.period is not None:
        return sampling.law()
    if check_name(name).endswith(STORED):
        bands = _stored(name, parameter, sampling.steps).bands
        return sampling.law(min(bands, sampling.most))
    if parameter is not None and FAMILIES[name].parameter == "bands":
        return sampling.law(min(int(parameter), sampling.most))

    def noise(period: int) -> float:
        law = sampling.law(period)
        return Aim(law, privacy).noise(build_strategy(name, parameter, law, privacy))

    return sampling.law(min([bands for bands in _BANDS if bands <= sampling.most], key=noise))


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
        return "" if family.parameter is None else f"{family.parameter} {self.value:.2g}"

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
    sampling: Sampling,
    *,
    epsilon: float,
    delta: float,
    slow: bool = False,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Plan:
    """Every mechanism calibrated to (epsilon, delta), the one of least noise first.

    Args:
        sampling: steps, and how batches are drawn.
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
    workload, privacy = PrefixSum(sampling.steps), (epsilon, delta)
    rows, left_out = [], {}
    for i, name in enumerate(FAMILIES):
        progress(name, i, len(FAMILIES))
        if sampling.steps > FAMILIES[name].fast and not slow:
            left_out[name] = f"takes long to find at {sampling.steps} steps (--slow)"
            continue
        try:
            law = choose_law(name, None, sampling, privacy)
            aim = Aim(law, None if sampling.name == "fixed" else privacy)
            value = choose_parameter(name, None, aim)
            c = FAMILIES[name].make(aim, value)
            mechanism = accounting.calibrate(c, law, epsilon=epsilon, delta=delta)
            rmse, largest = score.rmse(c, workload, law), score.max_error(c, workload, law)
        except Unsupported as error:
            left_out[name] = str(error)
            continue
        rows.append(PlanRow(name, value, mechanism, rmse, largest))
    return Plan(sorted(rows, key=lambda row: row.noise), left_out)
