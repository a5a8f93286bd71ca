"""Families of one parameter in [0, 1): a grid over scales, then Brent's method around its best point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
from scipy.optimize import minimize_scalar

from bluegrad import _checks, strategy
from bluegrad.optimize._amplified import Privacy, check_privacy
from bluegrad.optimize._problem import LOSSES
from bluegrad.optimize._record import Optimization, attach
from bluegrad.participation import BallsInBins, Participation
from bluegrad.strategy import Strategy
from bluegrad.workload import Workload

_GRID = 13
_NEAR = 0.02


def lambda_cgd(
    workload: Workload,
    participation: Participation,
    *,
    loss: str = "rmse",
    shortened: float = 1.0,
    privacy: tuple[float, float] | None = None,
) -> Strategy:
    """The lambda-CGD strategy of least loss, or one of shorter memory.

    Args:
        workload: A, n steps.
        participation: gives the sensitivity.
        loss: "rmse" or "max_error".
        shortened: divide the memory 1 / (1 - lam) of the optimum by this, at least 1. In training, the source found
            values two to four times shorter than the (amplified) optimum's to be best.
        privacy: (epsilon, delta), needed under BallsInBins: the loss times the noise multiplier there is minimised.

    Returns:
        `bluegrad.lambda_cgd(n, lam)`; lam is in its `parameters`, the record of the search in `optimization`.

    Raises:
        ValueError: unknown loss, different numbers of steps, `shortened` below 1, or no privacy target where it is
            needed.
        Unsupported: no sensitivity rule for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum
        >>> round(lambda_cgd(PrefixSum(1000), FixedEpochs(1000, 10)).parameters["lam"], 4)
        0.953

    Source: arXiv 2601.22334, section 5; its guideline in section 5.1.
    """
    n = workload.steps
    _checks.real("shortened", shortened, low=1.0, fix="1 is the optimum of the loss; commonly 2 to 4")
    noise = _Noise(workload, participation, loss, check_privacy(privacy, participation))
    best = _best(lambda damping: strategy.lambda_cgd(n, 1.0 - damping), noise)
    if shortened == 1.0:
        return best
    damping = min(1.0, shortened * (1.0 - best.describe()["parameters"]["lam"]))
    chosen = strategy.lambda_cgd(n, 1.0 - damping)
    return attach(chosen, replace(best.optimization, value=noise.loss_of(chosen), noise=noise.of(chosen)))


def nu_dp_ftrl(
    workload: Workload,
    participation: Participation,
    *,
    loss: str = "rmse",
    privacy: tuple[float, float] | None = None,
) -> Strategy:
    """The nu-DP-FTRL strategy of least loss.

    Args:
        workload: A, n steps.
        participation: gives the sensitivity.
        loss: "rmse" or "max_error".
        privacy: (epsilon, delta), needed under BallsInBins: the loss times the noise multiplier there is minimised.

    Returns:
        `bluegrad.nu_dp_ftrl(n, nu)`; nu is in its `parameters`, the record of the search in `optimization`.

    Raises:
        ValueError: unknown loss, different numbers of steps, or no privacy target where it is needed.
        Unsupported: no sensitivity rule for the participation.

    Example:
        >>> from bluegrad import FixedEpochs, PrefixSum
        >>> round(nu_dp_ftrl(PrefixSum(2000), FixedEpochs(2000, 20)).parameters["nu"], 3)
        0.004

    Source: arXiv 2310.06771, section 4.
    """
    n = workload.steps
    noise = _Noise(workload, participation, loss, check_privacy(privacy, participation))
    return _best(lambda nu: strategy.nu_dp_ftrl(n, min(nu, _BELOW_ONE)), noise)


_BELOW_ONE = float(np.nextafter(1.0, 0.0))


class _Noise:
    """What is minimised: the loss, times the noise multiplier at the privacy target where there is one."""

    def __init__(self, workload: Workload, participation: Participation, loss: str, privacy: Privacy | None) -> None:
        self.workload, self.participation, self.privacy = workload, participation, privacy
        self.loss = _checks.choice("loss", loss, tuple(LOSSES))

    def loss_of(self, member: Strategy) -> float:
        return LOSSES[self.loss](member, self.workload, self.participation)

    def of(self, member: Strategy) -> float | None:
        """Loss times multiplier, None without a target."""
        if self.privacy is None:
            return None
        return self.loss_of(member) * self.privacy.multiplier(member, self.participation)

    def __call__(self, member: Strategy) -> float:
        noise = self.of(member)
        return self.loss_of(member) if noise is None else noise


def _best(member: Callable[[float], Strategy], noise: _Noise) -> Strategy:
    """Minimise over the damping d in (0, 1], as log d: losses change with the scale of d, not with d."""
    started = perf_counter()

    def objective(log_damping: float) -> float:
        return noise(member(float(np.exp(min(log_damping, 0.0)))))

    # below 1 / (8 n) the damping no longer shows within the horizon
    grid = np.linspace(-np.log(8.0 * noise.workload.steps), 0.0, _GRID)
    scores = [objective(x) for x in grid]
    best = int(np.argmin(scores))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    # an estimated multiplier is no smoother than its samples
    near = _NEAR if isinstance(noise.participation, BallsInBins) else 1e-7
    inside = minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": near})
    better = bool(inside.fun < scores[best])
    found = member(float(np.exp(inside.x if better else grid[best])))
    steps, seconds = _GRID + int(inside.nfev), perf_counter() - started
    record = Optimization(noise.loss, noise.loss_of(found), steps, seconds, bool(inside.success), noise=noise.of(found))
    return attach(found, record)
