"""Buffered linear Toeplitz (BLT): C(x) = 1 + sum_i w_i x / (1 - q_i x), streamed with one model copy a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import toeplitz as _dense_toeplitz

from bluegrad import _checks
from bluegrad.strategy.base import Array, State, Strategy, check_horizon, check_prefix
from bluegrad.strategy.series import Toeplitz


@final
@dataclass(frozen=True, eq=False, repr=False)
class Buffered(Strategy):
    """C = 1 + sum_i w_i x / (1 - q_i x) as a series, with decays q and scales w, shape (buffers,) each."""

    steps: int
    decays: Array
    scales: Array

    def __repr__(self) -> str:
        return f"buffered_toeplitz(steps={self.steps}, buffers={len(self.decays)})"

    @cached_property
    def noise_buffers(self) -> tuple[Array, Array]:
        """The noising in the same form: N(x) = 1 - sum_i v_i x / (1 - p_i x), decays p and scales v >= 0.

        With u = sqrt(w): p are the eigenvalues of diag(q) - u u^T, a symmetric matrix, and v the squares of u in the
        basis of its eigenvectors.
        """
        u = np.sqrt(self.scales)
        values, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(u, u))
        return values, (vectors.T @ u) ** 2

    @cached_property
    def _c(self) -> Array:
        return _geometric(self.steps, self.decays, self.scales)

    @cached_property
    def _n(self) -> Array:
        decays, scales = self.noise_buffers
        return _geometric(self.steps, decays, -scales)

    def coefficients(self) -> Array:
        """c_0 = 1, c_t = sum_i w_i q_i^(t-1), shape (steps,)."""
        return self._c

    def noise_coefficients(self) -> Array:
        """n_0 = 1, n_t = -sum_i v_i p_i^(t-1), shape (steps,)."""
        return self._n

    def dense(self) -> Array:
        """C, shape (steps, steps)."""
        return np.asarray(_dense_toeplitz(self._c, np.zeros(self.steps)))

    def noising(self) -> Array:
        """N = C^-1, shape (steps, steps)."""
        return np.asarray(_dense_toeplitz(self._n, np.zeros(self.steps)))

    @property
    def _series(self) -> Strategy:
        return Toeplitz("buffered_toeplitz", self.steps, {}, self._c, self._n)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag]."""
        return self._series.gram_diagonal(lag)

    def column_norms(self) -> Array:
        """Norms of C's columns."""
        return self._series.column_norms()

    def kept(self, t: int) -> int:
        """The buffers, once there has been a step."""
        return len(self.decays) if t else 0

    @property
    def memory(self) -> int:
        """Model copies: the buffers."""
        return len(self.decays) if self.steps > 1 else 0

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """y_t = z_t - sum_i w_i s_i; s_i <- q_i s_i + y_t.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, buffers = state
        check_horizon(t, self.steps)
        y = z
        for scale, buffer in zip(self.scales, buffers):
            y = y - float(scale) * buffer
        if not buffers:
            return y, (t + 1, tuple(y for _ in self.decays))
        return y, (t + 1, tuple(float(decay) * buffer + y for decay, buffer in zip(self.decays, buffers)))

    def prefix(self, steps: int) -> Strategy:
        """The same buffers over fewer steps."""
        check_prefix(steps, self)
        return Buffered(steps, self.decays, self.scales)

    def describe(self) -> dict[str, Any]:
        """Decays and scales."""
        parameters = {"decays": self.decays.tolist(), "scales": self.scales.tolist()}
        return {"name": "buffered_toeplitz", "steps": self.steps, "parameters": parameters}


def _geometric(steps: int, decays: Array, scales: Array) -> Array:
    """1, then sum_i scales_i decays_i^(t-1) for t = 1 .. steps - 1, read-only."""
    out = np.zeros(steps)
    powers = np.empty(steps - 1)
    for decay, scale in zip(decays, scales):
        powers[:] = decay
        powers[:1] = scale
        out[1:] += np.cumprod(powers, out=powers)
    out[0] = 1.0
    out.flags.writeable = False
    return out


def buffered_toeplitz(steps: int, decays: ArrayLike, scales: ArrayLike) -> Strategy:
    """BLT strategy: C Toeplitz with c_0 = 1, c_t = sum_i scales_i decays_i^(t-1).

    Its noise is y_t = z_t - sum_i scales_i s_i with buffers s_i <- decays_i s_i + y_t: one model copy a buffer.

    Args:
        steps: number of steps n.
        decays: q, shape (buffers,), each in [0, 1).
        scales: w, shape (buffers,), each above 0, small enough that the noise stays bounded: about sum of
            w_i / (1 + q_i) below 1.

    Returns:
        The strategy, C of shape (n, n).

    Raises:
        ValueError: decays outside [0, 1), scales not above 0, different lengths, or noise that would grow without
            bound.

    Example:
        >>> buffered_toeplitz(4, decays=[0.5], scales=[0.5]).coefficients()
        array([1.   , 0.5  , 0.25 , 0.125])

    Source: arXiv 2404.16706, section 3; arXiv 2408.08868, appendix.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    q = _checks.vector("decays", decays, fix="give one decay in [0, 1) a buffer")
    w = _checks.vector("scales", scales, fix="give one scale above 0 a buffer")
    if len(w) != len(q):
        raise _checks.fail("len(scales)", len(w), f"must equal len(decays)={len(q)}", "give one of each a buffer")
    if (q < 0.0).any() or (q >= 1.0).any():
        bad = int(np.flatnonzero((q < 0.0) | (q >= 1.0))[0])
        raise _checks.fail(f"decays[{bad}]", float(q[bad]), "must lie in [0, 1)", "others let the strategy grow")
    if (w <= 0.0).any():
        bad = int(np.flatnonzero(w <= 0.0)[0])
        raise _checks.fail(f"scales[{bad}]", float(w[bad]), "must be above 0", "leave the buffer out instead")
    strategy = Buffered(steps, q, w)
    lowest = float(strategy.noise_buffers[0][0])
    if lowest <= -1.0:
        raise _checks.fail(
            "scales", w.tolist(), f"give noise that grows by a factor {-lowest:.3g} a step", "use smaller scales"
        )
    return strategy
