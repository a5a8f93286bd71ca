"""Quadratic problems and the error at which noisy gradient descent on them settles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from bluegrad import _checks
from bluegrad.strategy.base import Array
from bluegrad.theory.transfer import Transfer, distance


@dataclass(frozen=True, eq=False)
class Problem:
    """Gradient descent on a quadratic loss with private noise: theta <- theta - eta (H theta + noise).

    Mean estimation in d dimensions is H = I; linear regression has the covariance of its features. The noise is
    s_dp (N z)_t with s_dp^2 = G^2 gamma^2 / (2 rho), and SGD noise of covariance s_sgd^2 H.

    Args:
        eigenvalues: of the Hessian H, shape (d,), each above 0 (a direction of eigenvalue 0 costs nothing: leave it
            out).
        learning_rate: eta, in (0, 2 / L) for the largest eigenvalue L.
        clip_norm: G, above 0.
        rho: zero-concentrated privacy of one participation, above 0.
        sgd_noise: s_sgd, at least 0.
        multiplicities: how often each eigenvalue occurs, shape (d,), above 0 and not necessarily whole (as in an
            estimated density of eigenvalues); once if not given.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> Problem([1.0, 0.5, 0.25], learning_rate=0.1).effective_dimension
        1.75

    Source: arXiv 2310.06771, section 2.
    """

    eigenvalues: ArrayLike
    learning_rate: float
    clip_norm: float = 1.0
    rho: float = 1.0
    sgd_noise: float = 0.0
    multiplicities: ArrayLike | None = None
    spectrum: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        values = _checks.vector("eigenvalues", self.eigenvalues, fix="give the eigenvalues of the Hessian")
        if (values <= 0.0).any():
            bad = int(np.flatnonzero(values <= 0.0)[0])
            raise _checks.fail(
                f"eigenvalues[{bad}]", float(values[bad]), "must be above 0",
                "leave out directions of eigenvalue 0; of a Hessian with negative ones, nothing settles",
            )  # fmt: skip
        largest = float(values.max())
        _checks.real(
            "learning_rate", self.learning_rate, low=0.0, high=2.0 / largest, low_open=True, high_open=True,
            fix=f"gradient descent diverges from 2 / L = {2.0 / largest:.6g} on",
        )  # fmt: skip
        for name in ("clip_norm", "rho"):
            _checks.real(name, getattr(self, name), low=0.0, low_open=True, fix="1 is a unit to compare in")
        _checks.real("sgd_noise", self.sgd_noise, low=0.0, fix="0 leaves private noise alone")
        object.__setattr__(self, "spectrum", values)
        if self.multiplicities is not None:
            times = _checks.vector("multiplicities", self.multiplicities, fix="give one for each eigenvalue")
            if len(times) != len(values) or (times <= 0.0).any():
                raise _checks.fail(
                    "multiplicities", times.tolist()[:8], f"must be {len(values)} numbers above 0",
                    "give one for each eigenvalue",
                )  # fmt: skip

    @property
    def _times(self) -> Array:
        return np.ones(len(self.spectrum)) if self.multiplicities is None else np.asarray(self.multiplicities, float)

    @property
    def dimension(self) -> float:
        """d, counting every eigenvalue as often as it occurs."""
        return float(self._times.sum()) if self.multiplicities is not None else len(self.spectrum)

    @property
    def trace(self) -> float:
        """Tr H."""
        return float(self._times @ self.spectrum)

    @property
    def effective_dimension(self) -> float:
        """d_eff = Tr H / |H|: what takes the place of d under correlated noise."""
        return self.trace / float(self.spectrum.max())

    @property
    def stable_rank(self) -> float:
        """|H|_F^2 / |H|^2, at most d_eff."""
        return float(self._times @ (self.spectrum / self.spectrum.max()) ** 2)

    @property
    def condition_number(self) -> float:
        """Largest over least eigenvalue."""
        return float(self.spectrum.max() / self.spectrum.min())

    @cached_property
    def _groups(self) -> tuple[Array, Array]:
        values, where = np.unique(self.spectrum, return_inverse=True)
        return values, np.bincount(where, weights=self._times).astype(np.float64)

    @property
    def groups(self) -> tuple[Array, Array]:
        """Eigenvalues without repetition, rising, and how often each occurs."""
        return self._groups

    @property
    def rates(self) -> Array:
        """a = eta l of the different eigenvalues."""
        return self.learning_rate * self.groups[0]

    @property
    def price(self) -> float:
        """eta^2 G^2 / (4 rho): the unit of every private error."""
        return self.learning_rate**2 * self.clip_norm**2 / (4.0 * self.rho)

    def response(self, frequencies: Array) -> Array:
        """h(w) = sum_j l_j / |1 - eta l_j - e^(iw)|^2: what a unit of noise power at w costs."""
        out = np.zeros(np.shape(frequencies))
        for value, count in zip(*self.groups):
            out += count * value / distance(frequencies, 1.0 - self.learning_rate * value)
        return out


@dataclass(frozen=True)
class Suboptimality:
    """E[F(theta) - F(theta*)] once gradient descent has settled, split by what causes it; inf where it diverges."""

    private: float
    sgd: float

    @property
    def total(self) -> float:
        """Both parts together."""
        return self.private + self.sgd


def suboptimality(problem: Problem, noise: Transfer) -> Suboptimality:
    """Asymptotic suboptimality F_inf of a noise on a quadratic problem.

    F_inf = (1/2) sum_j l_j eta^2 (1/2pi) int (s_dp^2 |N|^2 + s_sgd^2 l_j) / |1 - eta l_j - e^(iw)|^2 dw with
    s_dp^2 = G^2 gamma^2 / (2 rho): the linear time-invariant part of linear regression (the expected Hessian in place
    of every sample's), and all of mean estimation.

    Args:
        problem: eigenvalues, learning rate, clip norm, rho and SGD noise.
        noise: transfer function of the noising.

    Returns:
        Private and SGD part; the private one is inf where the sensitivity or the noise diverges.

    Raises:
        ValueError: problem or noise is of another kind.

    Example:
        >>> from bluegrad.theory.named import white
        >>> round(suboptimality(Problem([1.0], learning_rate=0.1), white()).private, 7)
        0.0131579

    Source: arXiv 2310.06771, theorem 2.1 and appendix C.
    """
    check_problem(problem)
    check_transfer(noise)
    values, counts = problem.groups
    a = problem.rates
    # the gain of white noise is 1 / (a (2 - a))
    sgd = problem.sgd_noise**2 / 2.0 * float(counts @ (a / (2.0 - a)))
    gamma = noise.gamma
    if not math.isfinite(gamma):
        return Suboptimality(math.inf, sgd)
    return Suboptimality(problem.price * gamma**2 * float((counts * values) @ noise.gain(a)), sgd)


def check_problem(problem: Problem) -> None:
    """Refuse what isn't a problem.

    Raises:
        ValueError: it isn't one.
    """
    if not isinstance(problem, Problem):
        raise _checks.fail("problem", problem, "must be a theory.Problem", "give Problem(eigenvalues, learning_rate)")


def check_transfer(noise: Transfer) -> None:
    """Refuse what isn't a transfer function.

    Raises:
        ValueError: it isn't one.
    """
    if not isinstance(noise, Transfer):
        raise _checks.fail(
            "noise", noise, "must be a transfer function", "turn a strategy into one: transfer(strategy)"
        )
