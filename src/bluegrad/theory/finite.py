"""Finite horizons: how long gradients get, the clip norm that leaves them alone, and the error then."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from bluegrad import _checks
from bluegrad.strategy.base import Array
from bluegrad.theory.problem import Problem, check_problem, check_transfer, suboptimality
from bluegrad.theory.transfer import Transfer


def gradient_norm_bound(
    problem: Problem, noise: Transfer, *, steps: int, failure: float = 1e-3, start: ArrayLike | None = None
) -> float:
    """Length that no gradient g_t = H theta_t + s_sgd H^(1/2) u_t of the run exceeds, except with some probability.

    theta_t is Gaussian about (I - eta H)^t theta_0 with covariance at most its stationary one, so that
    |g_t| <= |H theta_0| + (Tr S)^(1/2) + (2 |S| log(n / p))^(1/2) for all t at once with probability 1 - p, S the
    covariance of g: the linear part of the source's theorem, with constants. (For eta L > 1 as well: every factor
    1 - eta l is below 1 in absolute value.)

    Args:
        problem: the quadratic problem; its clip norm sets the private noise.
        noise: transfer function of the noising.
        steps: number of steps n.
        failure: probability p, over the whole run.
        start: theta_0 - theta* in the eigenbasis, shape (d,); 0 if not given.

    Returns:
        The bound; inf where the sensitivity diverges.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> problem = Problem([1.0, 0.1], learning_rate=0.1, clip_norm=2.0, rho=10.0, sgd_noise=0.1)
        >>> from bluegrad.theory.named import damped_root
        >>> round(gradient_norm_bound(problem, damped_root(0.01), steps=1000), 2)
        1.11

    Source: arXiv 2310.06771, theorem D.4; Gaussian concentration.
    """
    fixed, slope = _parts(problem, noise, steps, failure, start)
    return fixed + slope * problem.clip_norm if math.isfinite(slope) else math.inf


def safe_clip_norm(
    problem: Problem, noise: Transfer, *, steps: int, failure: float = 1e-3, start: ArrayLike | None = None
) -> float:
    """The least clip norm G that the gradient norm bound proves to clip nothing, so that DP-FTRL is Noisy-FTRL.

    Private noise grows with G and lengthens gradients in turn: G = a + b G, which has a solution for b < 1 alone.

    Args:
        problem: the quadratic problem; its own clip norm doesn't matter.
        noise: transfer function of the noising.
        steps: number of steps n.
        failure: probability that a gradient of the run is clipped all the same.
        start: theta_0 - theta* in the eigenbasis, shape (d,); 0 if not given.

    Returns:
        The clip norm; inf where noise outgrows every one.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> from bluegrad.theory.named import white
        >>> safe_clip_norm(Problem([1.0], learning_rate=0.5, rho=0.1), white(), steps=100)
        inf

    Source: arXiv 2310.06771, theorem D.13.
    """
    fixed, slope = _parts(problem, noise, steps, failure, start)
    return fixed / (1.0 - slope) if slope < 1.0 else math.inf


@dataclass(frozen=True)
class Utility:
    """Bound on E[(F(theta_n) - F(theta*)) 1(E)] by causes, E being that no gradient of the run is clipped.

    P(E) is at least 1 - failure, so that the expectation conditioned on E is at most total / (1 - failure).
    """

    clip_norm: float
    start: float
    private: float
    sgd: float
    failure: float

    @property
    def total(self) -> float:
        """All parts together."""
        return self.start + self.private + self.sgd


def utility_bound(
    problem: Problem, noise: Transfer, *, steps: int, failure: float = 1e-3, start: ArrayLike | None = None
) -> Utility:
    """Error of DP-FTRL, with clipping, after n steps at the safe clip norm G.

    Where nothing is clipped the iterate is Noisy-FTRL's, whose mean is (I - eta H)^n theta_0 and whose variance
    in every direction rises towards the stationary one: the error is at most
    (1/2) sum_j l_j (1 - eta l_j)^(2n) theta_0j^2 + F_inf(G). With eta = log(n) / (mu n) its private part falls like
    1 / n^2 up to logarithms for nu-DP-FTRL, and like 1 / n for DP-SGD.

    Args:
        problem: the quadratic problem; its own clip norm doesn't matter.
        noise: transfer function of the noising.
        steps: number of steps n.
        failure: probability that a gradient of the run is clipped all the same.
        start: theta_0 - theta* in the eigenbasis, shape (d,); 0 if not given.

    Returns:
        The clip norm and the bound in three parts; clip norm and private part are inf where no clip norm is safe.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> from bluegrad.theory.named import damped_root
        >>> problem = Problem([1.0, 0.1], learning_rate=0.1, rho=10.0, sgd_noise=0.1)
        >>> bound = utility_bound(problem, damped_root(0.01), steps=1000, start=[1.0, 1.0])
        >>> round(bound.clip_norm, 2), round(bound.private, 5), round(bound.sgd, 5)
        (2.15, 0.0037, 0.00029)

    Source: arXiv 2310.06771, corollary D.15, with constants.
    """
    safe = safe_clip_norm(problem, noise, steps=steps, failure=failure, start=start)
    decay = (1.0 - problem.learning_rate * problem.spectrum) ** (2 * steps)
    theta0 = np.zeros(len(problem.spectrum)) if start is None else np.asarray(start, dtype=np.float64)
    begin = 0.5 * float((problem.spectrum * decay) @ theta0**2)
    settled = suboptimality(replace(problem, clip_norm=safe) if math.isfinite(safe) else problem, noise)
    return Utility(safe, begin, settled.private if math.isfinite(safe) else math.inf, settled.sgd, failure)


def _parts(
    problem: Problem, noise: Transfer, steps: int, failure: float, start: ArrayLike | None
) -> tuple[float, float]:
    """Bound as fixed + slope * G: deviations of independent SGD and private noise add up at most."""
    check_problem(problem)
    check_transfer(noise)
    _checks.integer("steps", steps, minimum=1, fix="give the number of steps")
    _checks.real("failure", failure, low=0.0, high=1.0, low_open=True, high_open=True, fix="commonly 1e-3")
    values, counts = problem.groups
    begin = 0.0
    if start is not None:
        theta0 = _checks.vector("start", start, fix=f"give {len(problem.spectrum)} coordinates")
        if len(theta0) != len(problem.spectrum):
            fix = "give one coordinate for each eigenvalue"
            raise _checks.fail("len(start)", len(theta0), f"must equal {len(problem.spectrum)}", fix)
        begin = float(np.linalg.norm(problem.spectrum * theta0))
    a = problem.rates
    sgd = problem.sgd_noise**2 * values * (a / (2.0 - a) + 1.0)
    gamma = noise.gamma
    if not math.isfinite(gamma):
        return math.inf, math.inf
    private = problem.learning_rate**2 * gamma**2 / (2.0 * problem.rho) * values**2 * noise.gain(a)
    return begin + _reach(sgd, counts, steps / failure), _reach(private, counts, steps / failure)


def _reach(variances: Array, counts: Array, odds: float) -> float:
    return math.sqrt(float(counts @ variances)) + math.sqrt(2.0 * float(variances.max()) * math.log(odds))


def half_exponential_constant(coefficients: ArrayLike, nu: float) -> float:
    """Smallest c with |n_t| <= c t^(-3/2) (1 - nu)^t for every t >= 1 that is given.

    nu-DP-FTRL has c = 1/2 at its own nu, over any horizon; coefficients whose c grows with their number decay slower.
    Coefficients must be right relative to their own size, as those of a single factor are.

    Args:
        coefficients: n_0, n_1, ..., shape (length,).
        nu: damping in [0, 1).

    Returns:
        c, 0 where nothing follows n_0.

    Raises:
        ValueError: bad shape, an entry that isn't finite, or nu outside [0, 1).

    Example:
        >>> from bluegrad.theory.named import damped_root
        >>> round(half_exponential_constant(damped_root(0.1).coefficients(100), 0.1), 9)
        0.5

    Source: arXiv 2310.06771, definition D.3.
    """
    n = _checks.vector("coefficients", coefficients, fix="give the first coefficients")[1:]
    nu = _checks.real("nu", nu, low=0.0, high=1.0, high_open=True, fix="give the damping to compare with")
    t = np.arange(1, len(n) + 1)
    seen = n != 0.0
    logs = np.log(np.abs(n[seen])) + 1.5 * np.log(t[seen]) - t[seen] * math.log1p(-nu)
    return float(np.exp(logs.max())) if seen.any() else 0.0
