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
from bluegrad.strategy.base import REPLAYED_BANDS, Array, State, Strategy, check_horizon, check_prefix

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
        check_prefix(steps, self)
        return Toeplitz(self.name, steps, self.parameters, self.given, self.given_noise)

    def describe(self) -> dict[str, Any]:
        """Name, steps and parameters; the coefficients themselves (or their digest) where they are parameters."""
        return {"name": self.name, "steps": self.steps, "parameters": dict(self.parameters)}

    @property
    def bands(self) -> int:
        """Bands of C."""
        return len(self._c)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag] in O(n): partial sums of c_l c_(l + lag), the fewer the later the column."""
        out = np.zeros(self.steps - lag)
        later = self._c[lag:]
        out[: len(later)] = later * self._c[: len(later)]
        return np.cumsum(out)[::-1]

    def column_norms(self) -> Array:
        """Norms of C's columns: column j ends after n - j entries."""
        energy = np.cumsum(self._c * self._c)
        return np.sqrt(energy[np.minimum(np.arange(self.steps, 0, -1), len(energy)) - 1])

    @property
    def _recurrent(self) -> bool:
        # C y = z needs bands(C) - 1 earlier outputs, y = N z needs bands(N) - 1 earlier inputs; inputs can be
        # drawn again, so the recurrence must be the shorter one to be worth its memory.
        return self.given is not None and self.given_noise is None and len(self._c) < len(self._n)

    def taps(self, t: int) -> Array | None:
        """Row t of N from the diagonal backwards, shape (min(t + 1, bands of N),); None for banded C."""
        return None if self._recurrent else self._n[: t + 1]

    def kept(self, t: int) -> int:
        """Earlier outputs for the recurrence, earlier inputs otherwise."""
        return min(t, len(self._c if self._recurrent else self._n) - 1)

    @property
    def memory(self) -> int:
        """Model copies: bands(C) - 1 by the recurrence; else what can't be drawn again cheaply."""
        if self._recurrent:
            return len(self._c) - 1
        return 0 if len(self._n) <= REPLAYED_BANDS else len(self._n) - 1

    @property
    def cost(self) -> tuple[int, int]:
        """Cost of a late step: normals drawn, vectors added."""
        return (1, len(self._c) - 1) if self._recurrent else super().cost

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """Row t of N Z and the next state.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, kept = state
        if not self._recurrent:
            return super().step(z, state)
        check_horizon(t, self.steps)
        y = z
        for weight, earlier in zip(self._c[1:], kept):
            y = y - float(weight) * earlier
        y = y / float(self._c[0])
        return y, (t + 1, (y, *kept)[: len(self._c) - 1])


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
    return x, {"bands": len(x), "sha256": digest(x)}


def digest(x: Array) -> str:
    """SHA-256 of an array's float64 values, the same on every machine."""
    return hashlib.sha256(np.ascontiguousarray(x, dtype="<f8").tobytes()).hexdigest()


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
