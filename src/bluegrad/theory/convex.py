"""Bounds for smooth, strongly convex losses by a conic program over frequencies, and the best noise for them."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks
from bluegrad.strategy.base import Array
from bluegrad.theory import _quadrature
from bluegrad.theory.named import white
from bluegrad.theory.optimal import Shaped
from bluegrad.theory.problem import check_transfer
from bluegrad.theory.transfer import Transfer

_WIDEST = 0.3
# A feasible multiplier is integrated on panels this much narrower than those it was found on.
_FINER = 4.0


@dataclass(frozen=True)
class ConvexClass:
    """Every mu-strongly convex, L-smooth loss in d dimensions under noisy gradient descent.

    Args:
        strong_convexity: mu, above 0.
        smoothness: L, above mu.
        learning_rate: eta, in (0, 2 / L).
        dimension: d.
        clip_norm: G.
        rho: zero-concentrated privacy of one participation.
        sgd_noise: standard deviation of white SGD noise a coordinate.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> ConvexClass(0.1, 1.0, learning_rate=0.5).condition_number
        10.0

    Source: arXiv 2310.06771, section 3.
    """

    strong_convexity: float
    smoothness: float
    learning_rate: float
    dimension: int = 1
    clip_norm: float = 1.0
    rho: float = 1.0
    sgd_noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("strong_convexity", "clip_norm", "rho"):
            _checks.real(name, getattr(self, name), low=0.0, low_open=True, fix="1 is a unit to compare in")
        _checks.real(
            "smoothness", self.smoothness, low=self.strong_convexity, low_open=True,
            fix="give the largest eigenvalue of any Hessian, above the least; for equal ones use Problem",
        )  # fmt: skip
        _checks.real(
            "learning_rate", self.learning_rate, low=0.0, high=2.0 / self.smoothness, low_open=True, high_open=True,
            fix="gradient descent diverges from 2 / L on",
        )  # fmt: skip
        _checks.integer("dimension", self.dimension, minimum=1, fix="give the number of parameters")
        _checks.real("sgd_noise", self.sgd_noise, low=0.0, fix="0 leaves private noise alone")

    @property
    def condition_number(self) -> float:
        """L / mu."""
        return self.smoothness / self.strong_convexity


@dataclass(frozen=True, eq=False)
class ConvexBound:
    """An upper bound on E[F(theta) - F(theta*)] for every loss of a class.

    Attributes:
        value: the bound, (L d / 2) times that on E|theta|^2 a coordinate.
        noise: the noise it holds for.
        cost: psi(w), what a unit of noise power at w costs E|theta|^2 at most.
        rounds: alternations between noise and bound.
    """

    value: float
    noise: Transfer
    cost: Callable[[Array], Array]
    rounds: int = 0


def convex_bound(losses: ConvexClass, noise: Transfer, *, lags: int = 30, points: int | None = None) -> ConvexBound:
    """Upper bound on the asymptotic suboptimality for every loss of a class, by integral quadratic constraints.

    Gradients satisfy int Re[(g - mu theta)* M (L theta - g)] dw >= 0 for every M(w) = m_0 - sum_(t != 0) m_t e^(-iwt),
    m >= 0, sum_(t != 0) m_t <= m_0 (Zames and Falb). With g = a theta - z, a = (1 - e^(iw)) / eta, a multiplier M gives
    E|theta|^2 <= mean of psi |z|^2 for psi = |q|^2 / p - 2 Re M, p = 2 Re(conj(a - mu) M (a - L)) - 1 > 0 and
    q = conj(a - mu) M + conj(M (a - L)). The best M is a second-order cone program on a grid; what is returned is the
    integral for the M that was found, on a finer grid.

    Args:
        losses: mu, L, learning rate and noise levels.
        noise: transfer function of the noising.
        lags: largest lag t of the multiplier; 0 is the sector condition alone.
        points: number of equally spaced frequencies; a graded grid if not given.

    Returns:
        The bound; inf where the sensitivity diverges.

    Raises:
        ImportError: cvxpy isn't installed.
        ValueError: an argument out of range, or the solver fails.

    Example:
        >>> losses = ConvexClass(0.5, 1.0, learning_rate=0.5, rho=0.5)
        >>> round(2 * convex_bound(losses, white(), lags=0).value, 4)
        0.7407

    Source: arXiv 2310.06771, theorem 3.1.
    """
    if not isinstance(losses, ConvexClass):
        raise _checks.fail("losses", losses, "must be a theory.ConvexClass", "give ConvexClass(mu, L, learning_rate)")
    check_transfer(noise)
    _checks.integer("lags", lags, minimum=0, fix="30 lags come within a percent of many")
    if points is not None:
        _checks.integer("points", points, minimum=8, fix="1000 is the source's choice")
    if not math.isfinite(noise.gamma):
        return ConvexBound(math.inf, noise, lambda w: np.full(np.shape(w), math.inf))
    private = losses.clip_norm**2 * noise.gamma**2 / (2.0 * losses.rho)

    def level(w: Array) -> Array:
        return private * noise.power(w) + losses.sgd_noise**2

    nodes, weights = _grid(losses, lags, 1.0)
    if points is not None:
        nodes, weights = (np.arange(points) + 0.5) * math.pi / points, np.full(points, 1.0 / points)
    multiplier = _Multiplier(losses, *_solve(losses, level(nodes) * weights, nodes, lags))
    fine, fine_weights = _grid(losses, lags, _FINER)
    moment = float(fine_weights @ (multiplier.cost(fine) * level(fine)))
    return ConvexBound(losses.smoothness * losses.dimension / 2.0 * moment, noise, multiplier.cost)


def convex_optimal(
    losses: ConvexClass, *, lags: int = 30, points: int | None = None, rounds: int = 20, tolerance: float = 1e-4
) -> ConvexBound:
    """The noise of least bound for a class, by alternation: |N|^2 = psi^(-1/2) is best for a cost psi.

    Args:
        losses: mu, L, learning rate and noise levels.
        lags: largest lag of the multiplier.
        points: number of equally spaced frequencies; a graded grid if not given.
        rounds: most alternations.
        tolerance: relative decrease of the bound below which the search ends.

    Returns:
        The bound and its noise, whose `strategy` trains.

    Raises:
        ImportError: cvxpy isn't installed.
        ValueError: an argument out of range, or the solver fails.

    Example:
        >>> losses = ConvexClass(0.1, 1.0, learning_rate=0.5)
        >>> convex_optimal(losses, lags=0).value < 0.4 * convex_bound(losses, white(), lags=0).value
        True

    Source: arXiv 2310.06771, section 3 and figure 3.
    """
    _checks.integer("rounds", rounds, minimum=1, fix="few are needed")
    _checks.real("tolerance", tolerance, low=0.0, fix="commonly 1e-4")
    best = convex_bound(losses, white(), lags=lags, points=points)
    for done in range(1, rounds + 1):
        noise = Shaped("optimized", _root_of(best.cost), losses.learning_rate * losses.strong_convexity)
        found = convex_bound(losses, noise, lags=lags, points=points)
        gained = 1.0 - found.value / best.value
        if gained > 0.0:
            best = ConvexBound(found.value, found.noise, found.cost, done)
        if gained <= tolerance:
            break
    return best


def _root_of(cost: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda w: cost(w) ** -0.5


@dataclass(frozen=True, eq=False)
class _Multiplier:
    """M(w) = m_0 - sum_t (later_t e^(-iwt) + earlier_t e^(iwt)) and the cost that it proves."""

    losses: ConvexClass
    first: float
    later: Array
    earlier: Array

    def cost(self, frequencies: Array) -> Array:
        """psi(w); inf where this multiplier proves nothing."""
        w = np.asarray(frequencies, dtype=np.float64)
        t = np.arange(1, len(self.later) + 1)
        phase = np.exp(-1j * w[..., None] * t)
        m = self.first - phase @ self.later - phase.conj() @ self.earlier
        above, below = _sides(self.losses, w)
        p = 2.0 * (above.conj() * m * below).real - 1.0
        q = above.conj() * m + (m * below).conj()
        with np.errstate(divide="ignore"):
            return np.where(p > 0.0, np.abs(q) ** 2 / p - 2.0 * m.real, math.inf)


def _sides(losses: ConvexClass, w: Array) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """a - mu and a - L."""
    a = (1.0 - np.exp(1j * w)) / losses.learning_rate
    return a - losses.strong_convexity, a - losses.smoothness


def _grid(losses: ConvexClass, lags: int, finer: float) -> tuple[Array, Array]:
    low = losses.learning_rate * losses.strong_convexity / 2.0
    high = 2.0 - losses.learning_rate * losses.smoothness
    return _quadrature.grid(low / finer, high / finer, min(_WIDEST, 8.0 / (lags + 1)) / finer)


def _solve(losses: ConvexClass, weights: Array, w: Array, lags: int) -> tuple[float, Array, Array]:
    """The multiplier m of least sum of weights * psi on a grid, made exactly feasible."""
    cp: Any = _cvxpy()
    above, below = _sides(losses, w)
    first, later, earlier = cp.Variable(nonneg=True), cp.Variable(max(lags, 1)), cp.Variable(max(lags, 1))
    t = np.arange(1, max(lags, 1) + 1)
    phase = np.outer(w, t)
    real = first - np.cos(phase) @ (later + earlier)
    imaginary = np.sin(phase) @ (later - earlier)
    psi = cp.Variable(len(w))
    product, back, below_back = above.conj() * below, above.conj(), below.conj()
    p = 2.0 * (cp.multiply(product.real, real) - cp.multiply(product.imag, imaginary)) - 1.0
    r = psi + 2.0 * real
    q_real = cp.multiply((back + below_back).real, real) - cp.multiply((back - below_back).imag, imaginary)
    q_imaginary = cp.multiply((back + below_back).imag, real) + cp.multiply((back - below_back).real, imaginary)
    constraints = [
        cp.SOC(p + r, cp.vstack([2.0 * q_real, 2.0 * q_imaginary, p - r]), axis=0),
        later >= 0.0, earlier >= 0.0, cp.sum(later) + cp.sum(earlier) <= (first if lags else 0.0),
    ]  # fmt: skip
    scale = float(weights.sum())
    program = cp.Problem(cp.Minimize((weights / scale) @ psi), constraints)
    with warnings.catch_warnings():
        # how accurate the solution is shows in the bound, which is computed from it anew
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        program.solve(solver=cp.CLARABEL)
    if program.status not in ("optimal", "optimal_inaccurate"):
        raise _checks.fail("losses", losses, f"isn't solved: {program.status}", "use a learning rate below 1 / L")
    m, tails = float(first.value), [np.maximum(np.asarray(x.value), 0.0) for x in (later, earlier)]
    over = max((tails[0].sum() + tails[1].sum()) / m, 1.0) if lags else math.inf
    return m, tails[0] / over, tails[1] / over


def _cvxpy() -> Any:
    try:
        return importlib.import_module("cvxpy")
    except ImportError:
        raise ImportError("this bound needs cvxpy with Clarabel; pip install 'bluegrad[theory]'") from None
