"""Lower-triangular Toeplitz strategies: C and N are power series, inverse to each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import toeplitz as _dense_toeplitz

from bluegrad import _checks, _series
from bluegrad.strategy.base import Array, State, Strategy, check_horizon, weighted_sum
from bluegrad.workload import Workload, power_coefficients

# A general strategy up to this many coefficients is described by them, a longer one by their digest.
_LISTED = 64


@final
@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(Strategy):
    """A lower-triangular Toeplitz strategy, given by the coefficients of C, of its noising N, or of both.

    Built by the factories of this module. Trailing zeros are dropped, so that `len` of a coefficient array
    is its number of bands.
    """

    name: str
    steps: int
    parameters: dict[str, Any]
    given: Array | None = field(default=None)
    given_noise: Array | None = field(default=None)

    def __post_init__(self) -> None:
        for x in (self.given, self.given_noise):
            if x is not None:
                x.flags.writeable = False

    def __repr__(self) -> str:
        inside = "".join(f", {key}={value!r}" for key, value in self.parameters.items())
        return f"{self.name}(steps={self.steps}{inside})"

    @cached_property
    def _c(self) -> Array:
        if self.given is not None:
            return _frozen(self.given[: self.steps])
        assert self.given_noise is not None
        return _frozen(_invert(self.given_noise, self.steps, self))

    @cached_property
    def _n(self) -> Array:
        if self.given_noise is not None:
            return _frozen(self.given_noise[: self.steps])
        assert self.given is not None
        return _frozen(_invert(self.given, self.steps, self))

    def coefficients(self) -> Array:
        """Leading coefficients of C, shape (bands,)."""
        return self._c

    def noise_coefficients(self) -> Array:
        """Leading coefficients of N, shape (bands of N,)."""
        return self._n

    def dense(self) -> Array:
        """C, shape (steps, steps)."""
        return _matrix(self._c, self.steps)

    def noising(self) -> Array:
        """N = C^-1, shape (steps, steps)."""
        return _matrix(self._n, self.steps)

    def prefix(self, steps: int) -> Strategy:
        """The same coefficients over fewer steps."""
        _checks.integer("steps", steps, minimum=1, fix=f"give at most the {self.steps} steps of the strategy")
        if steps > self.steps:
            raise _checks.fail("steps", steps, f"the strategy has {self.steps}", "give at most as many")
        return Toeplitz(self.name, steps, self.parameters, self.given, self.given_noise)

    def describe(self) -> dict[str, Any]:
        """Name, steps and parameters; the coefficients themselves (or their digest) where they are parameters."""
        return {"name": self.name, "steps": self.steps, "parameters": dict(self.parameters)}

    @property
    def _recurrent(self) -> bool:
        # C y = z needs bands(C) - 1 earlier outputs, y = N z needs bands(N) - 1 earlier inputs; inputs can be
        # drawn again, so the recurrence must be the shorter one to be worth its memory.
        return self.given is not None and self.given_noise is None and len(self._c) < len(self._n)

    def taps(self, t: int) -> Array | None:
        """Row t of N from the diagonal backwards, shape (min(t + 1, bands of N),); None for banded C."""
        return None if self._recurrent else self._n[: t + 1]

    @property
    def memory(self) -> int:
        """Model copies: bands(C) - 1 by the recurrence; else what can't be drawn again cheaply."""
        if self._recurrent:
            return len(self._c) - 1
        return 0 if len(self._n) <= REPLAYED_BANDS else len(self._n) - 1

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """Row t of N Z and the next state.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, kept = state
        check_horizon(t, self.steps)
        if not self._recurrent:
            kept = (z, *kept)[: len(self._n)]
            return weighted_sum(self._n, kept), (t + 1, kept[: max(len(self._n) - 1, 0)])
        y = z
        for weight, earlier in zip(self._c[1:], kept):
            y = y - float(weight) * earlier
        y = y / float(self._c[0])
        return y, (t + 1, (y, *kept)[: len(self._c) - 1])


# Up to this many bands of N a stream draws earlier noise again at every step; beyond, drawing costs more than
# keeping, so it keeps the noise it drew.
REPLAYED_BANDS = 16


def _frozen(x: Array) -> Array:
    x = np.array(_series.strip(x))
    x.flags.writeable = False
    return x


def _matrix(coefficients: Array, steps: int) -> Array:
    column = np.zeros(steps)
    column[: len(coefficients)] = coefficients
    return np.asarray(_dense_toeplitz(column, np.zeros(steps)))


def _invert(series: Array, steps: int, strategy: Strategy) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        out = _series.inverse(series[:steps], steps)
    if not np.isfinite(out).all():
        raise ValueError(
            f"{strategy!r}: the inverse of its coefficients overflows within {steps} steps; "
            "use coefficients whose inverse series stays bounded, such as non-increasing positive ones"
        )
    return out


def _general(name: str, argument: str, values: ArrayLike, steps: int) -> tuple[Array, dict[str, Any]]:
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    x = _checks.vector(
        argument, values, longest=steps, fix=f"give the first coefficients, at most steps={steps} of them"
    )
    if x[0] == 0.0:
        raise _checks.fail(f"{argument}[0]", float(x[0]), "must not be zero", "C must be invertible")
    x = _series.strip(x)
    if len(x) <= _LISTED:
        return x, {argument: x.tolist()}
    return x, {"bands": len(x), "sha256": hashlib.sha256(x.astype("<f8").tobytes()).hexdigest()}


def toeplitz(coefficients: ArrayLike, steps: int) -> Strategy:
    """Toeplitz strategy C[i, j] = coefficients[i - j], zero past the last coefficient.

    Its noise follows the recurrence y_t = (z_t - sum_j c_j y_(t-j)) / c_0, with bands - 1 model copies.

    Args:
        coefficients: c_0, c_1, ..., shape (bands,), bands <= steps, c_0 not zero.
        steps: number of steps n.

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: bad shape, an entry that isn't finite, c_0 = 0, or more coefficients than steps.

    Example:
        >>> toeplitz([1.0, 0.5], steps=3).noising()
        array([[ 1.  ,  0.  ,  0.  ],
               [-0.5 ,  1.  ,  0.  ],
               [ 0.25, -0.5 ,  1.  ]])

    Source: arXiv 2405.13763 (banded square root is one of these).
    """
    x, parameters = _general("toeplitz", "coefficients", coefficients, steps)
    return Toeplitz("toeplitz", steps, parameters, given=x)


def banded_inverse_toeplitz(noise_coefficients: ArrayLike, steps: int) -> Strategy:
    """Strategy given by its noise: N[i, j] = noise_coefficients[i - j], C = N^-1.

    Each step mixes the last `bands` raw noise vectors, which can be drawn again instead of stored.

    Args:
        noise_coefficients: b_0, b_1, ..., shape (bands,), bands <= steps, b_0 not zero.
        steps: number of steps n.

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: bad shape, an entry that isn't finite, b_0 = 0, or more coefficients than steps.

    Example:
        >>> banded_inverse_toeplitz([1.0, -0.5], steps=3).dense()
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.25, 0.5 , 1.  ]])

    Source: arXiv 2505.12128.
    """
    x, parameters = _general("banded_inverse_toeplitz", "noise_coefficients", noise_coefficients, steps)
    return Toeplitz("banded_inverse_toeplitz", steps, parameters, given_noise=x)


def identity(steps: int) -> Strategy:
    """Independent noise at every step, C = I: DP-SGD.

    Args:
        steps: number of steps n.

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: steps isn't a positive integer.

    Example:
        >>> identity(2).dense()
        array([[1., 0.],
               [0., 1.]])

    Source: Abadi et al. 2016.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    return Toeplitz("identity", steps, {}, given=np.ones(1), given_noise=np.ones(1))


def lambda_cgd(steps: int, lam: float) -> Strategy:
    """DP-lambda-CGD: noise z_t - lam z_(t-1), C[i, j] = lam^(i - j); no extra memory.

    Args:
        steps: number of steps n.
        lam: share of the previous step's noise that is taken back, in [0, 1).

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: steps isn't a positive integer, or lam lies outside [0, 1).

    Example:
        >>> lambda_cgd(3, lam=0.5).taps(2)
        array([ 1. , -0.5])

    Source: arXiv 2601.22334, equation 3 and algorithm 1.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    lam = _checks.real(
        "lam", lam, low=0.0, high=1.0, high_open=True,
        fix="0 is DP-SGD; bluegrad.optimize.lambda_cgd finds the best value",
    )  # fmt: skip
    c = np.full(steps, lam)
    c[0] = 1.0
    np.cumprod(c, out=c)
    return Toeplitz("lambda_cgd", steps, {"lam": lam}, given=c, given_noise=np.array([1.0, -lam]))


def nu_dp_ftrl(steps: int, nu: float) -> Strategy:
    """nu-DP-FTRL: N(x) = (1 - (1 - nu) x)^(1/2), noise coefficients (-1)^t binom(1/2, t) (1 - nu)^t.

    Args:
        steps: number of steps n.
        nu: damping in [0, 1); 0 is the square root of the prefix sum.

    Returns:
        The strategy, C of shape (steps, steps).

    Raises:
        ValueError: steps isn't a positive integer, or nu lies outside [0, 1).

    Example:
        >>> nu_dp_ftrl(3, nu=0.0).taps(2)
        array([ 1.   , -0.5  , -0.125])

    Source: arXiv 2310.06771, equation 6.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    nu = _checks.real(
        "nu", nu, low=0.0, high=1.0, high_open=True,
        fix="0 is the square root; bluegrad.optimize.nu_dp_ftrl finds the best value",
    )  # fmt: skip
    c = power_coefficients(-0.5, 1.0 - nu, steps)
    n = power_coefficients(0.5, 1.0 - nu, steps)
    return Toeplitz("nu_dp_ftrl", steps, {"nu": nu}, given=c, given_noise=n)


def square_root(workload: Workload) -> Strategy:
    """The square-root factorization C = A^(1/2) of a Toeplitz workload; B = A N = A^(1/2) as well.

    Args:
        workload: a Toeplitz workload A, shape (n, n).

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: workload isn't a bluegrad workload.

    Example:
        >>> from bluegrad.workload import PrefixSum
        >>> square_root(PrefixSum(3)).coefficients()
        array([1.   , 0.5  , 0.375])

    Source: arXiv 2202.11205 (Fichtenberger, Henzinger, Upadhyay), theorem 1.
    """
    _check_workload(workload)
    root, inverse = workload.root(+1), workload.root(-1)
    return Toeplitz("square_root", workload.steps, _workload_parameters(workload), given=root, given_noise=inverse)


def banded_square_root(workload: Workload, bands: int) -> Strategy:
    """BSR: the first `bands` coefficients of the square root C = A^(1/2) of a Toeplitz workload.

    Args:
        workload: a Toeplitz workload A, shape (n, n).
        bands: number of bands of C, from 1 to n; streaming keeps bands - 1 model copies.

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: no or no Toeplitz workload, or bands outside 1 .. n.

    Example:
        >>> from bluegrad.workload import PrefixSum
        >>> banded_square_root(PrefixSum(4), bands=2).coefficients()
        array([1. , 0.5])

    Source: arXiv 2405.13763, definition 1.
    """
    _check_bands(workload, bands)
    parameters = {**_workload_parameters(workload), "bands": bands}
    return Toeplitz("banded_square_root", workload.steps, parameters, given=workload.root(+1)[:bands].copy())


def banded_inverse_square_root(workload: Workload, bands: int) -> Strategy:
    """BISR: noise of the first `bands` coefficients of the inverse square root A^(-1/2) of a Toeplitz workload.

    Args:
        workload: a Toeplitz workload A, shape (n, n).
        bands: number of bands of N = C^-1, from 1 to n.

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: no or no Toeplitz workload, or bands outside 1 .. n.

    Example:
        >>> from bluegrad.workload import PrefixSum
        >>> banded_inverse_square_root(PrefixSum(4), bands=2).taps(3)
        array([ 1. , -0.5])

    Source: arXiv 2505.12128, section 3.
    """
    _check_bands(workload, bands)
    parameters = {**_workload_parameters(workload), "bands": bands}
    root = workload.root(-1)[:bands].copy()
    return Toeplitz("banded_inverse_square_root", workload.steps, parameters, given_noise=root)


def _check_workload(workload: Workload) -> None:
    if not isinstance(workload, Workload):
        raise _checks.fail("workload", workload, "must be a workload", "give bluegrad.PrefixSum(steps)")


def _check_bands(workload: Workload, bands: int) -> None:
    _check_workload(workload)
    fix = f"give 1 to steps={workload.steps} bands"
    if _checks.integer("bands", bands, minimum=1, fix=fix) > workload.steps:
        raise _checks.fail("bands", bands, f"must be at most steps={workload.steps}", fix)


def _workload_parameters(workload: Workload) -> dict[str, Any]:
    """What of a Toeplitz workload determines its root."""
    named = {key: getattr(workload, key) for key in ("momentum", "weight_decay") if hasattr(workload, key)}
    rates = getattr(workload, "learning_rates", None)
    rate = {} if rates is None else {"learning_rate": float(rates[0])}
    return {"workload": type(workload).__name__, **named, **rate}
