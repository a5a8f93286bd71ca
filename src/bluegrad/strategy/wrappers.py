"""Strategies made of another one: restarts, equal column norms, the first steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bluegrad import _checks
from bluegrad.strategy.base import (
    Array,
    State,
    Strategy,
    check_dense,
    check_horizon,
    check_prefix,
    check_scale,
    check_strategy,
)
from bluegrad.strategy.series import digest


@final
@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Strategy):
    """The first steps of a strategy whose rows of noise are no strategy of fewer steps: C[:, :t] and N[:t]."""

    whole: Strategy
    steps: int

    def __repr__(self) -> str:
        return f"prefix(steps={self.steps}, of={self.whole!r})"

    def dense(self) -> Array:
        """C[:, :steps]."""
        return self.whole.dense()[:, : self.steps]

    def noising(self) -> Array:
        """N[:steps]."""
        return self.whole.noising()[: self.steps]

    def causal(self) -> Array:
        """Top-left block of L."""
        return self.whole.causal()[: self.steps, : self.steps]

    @property
    def bands(self) -> int:
        """Bands of C^T C."""
        return min(self.whole.bands, self.steps)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag], of the whole strategy: it gives away no less than its first releases."""
        return self.whole.gram_diagonal(lag)[: self.steps - lag]

    def gram_coefficients(self) -> Array | None:
        """First row of C^T C where that is a Toeplitz matrix."""
        x = self.whole.gram_coefficients()
        return None if x is None else x[: self.steps]

    def column_norms(self) -> Array:
        """Norms of the first columns."""
        return self.whole.column_norms()[: self.steps]

    def taps(self, t: int) -> Array | None:
        """Row t of L from the diagonal backwards."""
        return self.whole.taps(t)

    def kept(self, t: int) -> int:
        """As the whole strategy's."""
        return self.whole.kept(t)

    @property
    def memory(self) -> int:
        """Model copies."""
        if self.taps(0) is None:
            return max(self.whole.kept(t) for t in range(self.steps))
        return min(self.whole.memory, self.steps - 1)

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """The whole strategy's step, up to this one's horizon.

        Raises:
            ValueError: the stream is past its last step.
        """
        check_horizon(state[0], self.steps)
        return self.whole.step(z, state)

    def prefix(self, steps: int) -> Strategy:
        """Fewer steps of the same strategy."""
        check_prefix(steps, self)
        return Prefix(self.whole, steps)

    def describe(self) -> dict[str, Any]:
        """The whole strategy."""
        return {"name": "prefix", "steps": self.steps, "parameters": {"of": self.whole.describe()}}


@final
@dataclass(frozen=True, eq=False, repr=False)
class ColumnScaled(Strategy):
    """C diag(1 / norms) of another strategy's C: row t of its noise is norms[t] times the other's."""

    inner: Strategy
    norms: Array
    horizon: int

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.inner.steps

    def __repr__(self) -> str:
        return f"column_normalized({self.inner!r})"

    def dense(self) -> Array:
        """C, columns divided by their norms."""
        return self.inner.dense() / self.norms

    def noising(self) -> Array:
        """N, rows multiplied by them."""
        return self.norms[:, None] * self.inner.noising()

    def causal(self) -> Array:
        """L, rows multiplied by them."""
        return self.norms[:, None] * self.inner.causal()

    def noise_columns(self) -> Iterator[Array]:
        """The inner strategy's, rows multiplied."""
        return (self.norms[:, None] * block for block in self.inner.noise_columns())

    @property
    def bands(self) -> int:
        """As the inner strategy's."""
        return self.inner.bands

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag]."""
        return self.inner.gram_diagonal(lag) / (self.norms[: self.steps - lag] * self.norms[lag:])

    def column_norms(self) -> Array:
        """Ones over the strategy's own horizon, less where it is a prefix of it."""
        return self.inner.column_norms() / self.norms

    def taps(self, t: int) -> Array | None:
        """Row t of L from the diagonal backwards."""
        taps = self.inner.taps(t)
        return None if taps is None else float(self.norms[t]) * taps

    def kept(self, t: int) -> int:
        """As the inner strategy's."""
        return self.inner.kept(t)

    @property
    def memory(self) -> int:
        """As the inner strategy's."""
        return self.inner.memory

    @property
    def cost(self) -> tuple[int, int]:
        """As the inner strategy's."""
        return self.inner.cost

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """The inner strategy's row, scaled; the state isn't.

        Raises:
            ValueError: the stream is past its last step.
        """
        y, after = self.inner.step(z, state)
        return float(self.norms[state[0]]) * y, after

    def prefix(self, steps: int) -> Strategy:
        """The inner strategy's prefix with the same norms."""
        check_prefix(steps, self)
        return ColumnScaled(self.inner.prefix(steps), self.norms[:steps], self.horizon)

    def describe(self) -> dict[str, Any]:
        """The inner strategy and the norms."""
        parameters = {"of": self.inner.describe(), "horizon": self.horizon, "sha256": digest(self.norms)}
        return {"name": "column_normalized", "steps": self.steps, "parameters": parameters}


@final
@dataclass(frozen=True, eq=False, repr=False)
class Stamped(Strategy):
    """C = I (x) C_inner: the inner strategy run again and again, with fresh noise in every repetition."""

    inner: Strategy
    repeats: int

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return self.inner.steps * self.repeats

    def __repr__(self) -> str:
        return f"stamped({self.inner!r}, repeats={self.repeats}, steps={self.steps})"

    def dense(self) -> Array:
        """C, block-diagonal."""
        return np.asarray(np.kron(np.eye(self.repeats), self.inner.dense()))

    def noising(self) -> Array:
        """N, block-diagonal: on the prefix sum, every block repeats the last row of those before."""
        return np.asarray(np.kron(np.eye(self.repeats), self.inner.noising()))

    def causal(self) -> Array:
        """L, block-diagonal."""
        check_dense(self, "noise")
        return np.asarray(np.kron(np.eye(self.repeats), self.inner.causal()))

    def repetition(self) -> tuple[Strategy, int]:
        """The inner strategy."""
        return self.inner, self.repeats

    def noise_columns(self) -> Iterator[Array]:
        """The inner strategy's, block by block."""
        b = self.inner.steps
        for block in self.inner.noise_columns():
            for first in range(0, self.steps, b):
                out = np.zeros((self.steps, block.shape[1]))
                out[first : first + b] = block
                yield out

    @property
    def bands(self) -> int:
        """As the inner strategy's."""
        return self.inner.bands

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag]: the inner strategy's within a block, 0 between blocks."""
        b = self.inner.steps
        out = np.zeros(self.steps)
        if lag < b:
            out.reshape(self.repeats, b)[:, : b - lag] = self.inner.gram_diagonal(lag)
        return out[: self.steps - lag]

    def column_norms(self) -> Array:
        """The inner strategy's, repeated."""
        return np.tile(self.inner.column_norms(), self.repeats)

    def taps(self, t: int) -> Array | None:
        """Row t of L from the diagonal backwards, within its block."""
        return self.inner.taps(t % self.inner.steps)

    def kept(self, t: int) -> int:
        """As the inner strategy's within a block; nothing at its start."""
        return self.inner.kept(t % self.inner.steps)

    @property
    def memory(self) -> int:
        """As the inner strategy's."""
        return self.inner.memory

    @property
    def cost(self) -> tuple[int, int]:
        """As the inner strategy's."""
        return self.inner.cost

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """The inner strategy's step, begun anew with every block.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, kept = state
        check_horizon(t, self.steps)
        y, (_, after) = self.inner.step(z, (t % self.inner.steps, kept))
        return y, (t + 1, after if (t + 1) % self.inner.steps else ())

    def prefix(self, steps: int) -> Strategy:
        """Whole repetitions where they fit, else the first steps of this strategy."""
        check_prefix(steps, self)
        if steps <= self.inner.steps:
            return self.inner.prefix(steps)
        repeats, rest = divmod(steps, self.inner.steps)
        return Prefix(self, steps) if rest else Stamped(self.inner, repeats)

    def describe(self) -> dict[str, Any]:
        """The inner strategy and how often it is repeated."""
        parameters = {"of": self.inner.describe(), "repeats": self.repeats}
        return {"name": "stamped", "steps": self.steps, "parameters": parameters}


def stamped(strategy: Strategy, repeats: int) -> Strategy:
    """Restarts: `repeats` independent copies of a strategy one after the other, C = I (x) C_strategy.

    On the prefix sum every repetition starts from the last estimate of the one before; for any workload A the decoder
    is A (I (x) N).

    Args:
        strategy: the strategy of one repetition, b steps.
        repeats: how often it is run.

    Returns:
        The strategy over b * repeats steps.

    Raises:
        ValueError: no strategy, or repeats isn't a positive integer.

    Example:
        >>> from bluegrad import lambda_cgd
        >>> stamped(lambda_cgd(2, lam=0.5), repeats=2).steps
        4

    Source: arXiv 2211.06530, section 5 ("stamping").
    """
    check_strategy(strategy)
    _checks.integer("repeats", repeats, minimum=1, fix="give the number of restarts plus one")
    return strategy if repeats == 1 else Stamped(strategy, repeats)


def column_normalized(strategy: Strategy) -> Strategy:
    """The strategy with every column of C divided by its norm: equal noise-to-signal for every step's gradient.

    Row t of its noise is the norm of column t times row t of the strategy's noise; it streams as the strategy does.

    Args:
        strategy: C.

    Returns:
        The strategy C D^-1, D the diagonal of C's column norms.

    Raises:
        ValueError: no strategy, or columns too large or too small for their squares.

    Example:
        >>> from bluegrad import SinglePass, lambda_cgd, sensitivity
        >>> sensitivity(column_normalized(lambda_cgd(8, lam=0.9)), SinglePass(8))
        1.0

    Source: arXiv 2601.22334, appendix (never worse for lambda-CGD); arXiv 2306.08153, section 4.
    """
    check_strategy(strategy)
    with np.errstate(over="ignore", invalid="ignore"):  # caught by its result
        norms = strategy.column_norms()
    check_scale("column norm", float(norms.min()))
    check_scale("column norm", float(norms.max()))
    norms.flags.writeable = False
    return ColumnScaled(strategy, norms, strategy.steps)
