"""SGD with momentum, weight decay and learning-rate schedules as a workload."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from bluegrad import _checks, _series
from bluegrad.workload.base import Array, State, Workload, power_coefficients, toeplitz_row_norms


@dataclass(frozen=True, eq=False)
class Sgd(Workload):
    """SGD with momentum, weight decay and a schedule: row t is the model after step t, signs aside.

    Decoupled (the literature's form): m_t = momentum m_(t-1) + g_t, theta_t = (1 - weight_decay) theta_(t-1) +
    rate_t m_t. Coupled (torch.optim.SGD): the decay enters the gradient before the momentum, m_t = momentum m_(t-1) +
    g_t - weight_decay theta_(t-1), theta_t = theta_(t-1) + rate_t m_t.

    Args:
        steps: number of steps n.
        momentum: in [0, 1).
        weight_decay: in [0, 1): decoupled the shrinkage of the model a step, coupled the factor in the gradient.
        learning_rates: one rate above 0 a step, shape (steps,), or a torch learning-rate scheduler, which is read
            ahead and left as it was; None is 1 throughout.
        coupled: which form the weight decay has.

    Raises:
        ValueError: an argument out of range, or rates of another length.

    Example:
        >>> Sgd(3, momentum=0.5).dense()
        array([[1.  , 0.  , 0.  ],
               [1.5 , 1.  , 0.  ],
               [1.75, 1.5 , 1.  ]])

    Source: arXiv 2211.06530, section 4; arXiv 2405.13763, section 3.
    """

    steps: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: ArrayLike | Any | None = None
    coupled: bool = False

    def __post_init__(self) -> None:
        _checks.integer("steps", self.steps, minimum=1, fix="give the number of training steps")
        for name in ("momentum", "weight_decay"):
            _checks.real(name, getattr(self, name), low=0.0, high=1.0, high_open=True, fix="commonly 0 to 0.99")
        if self.coupled not in (True, False):
            raise _checks.fail("coupled", self.coupled, "must be True or False", "True is torch.optim.SGD's form")
        if self.learning_rates is not None:
            fix = f"give one rate a step, {self.steps} of them"
            given = self.learning_rates
            if hasattr(given, "get_last_lr") and hasattr(given, "optimizer"):
                given = _read_ahead(given, self.steps)
            rates = _checks.vector("learning_rates", given, longest=self.steps, fix=fix)
            if len(rates) != self.steps:
                raise _checks.fail("len(learning_rates)", len(rates), f"must equal steps={self.steps}", fix)
            if (rates <= 0.0).any():
                raise _checks.fail("learning_rates", float(rates.min()), "must be above 0", fix)
            object.__setattr__(self, "learning_rates", rates)

    @property
    def _rates(self) -> Array:
        return np.ones(self.steps) if self.learning_rates is None else np.asarray(self.learning_rates)

    @property
    def _constant(self) -> bool:
        return bool((self._rates == self._rates[0]).all())

    @property
    def _denominator(self) -> Array:
        """A(x) = rate / denominator(x) where the rates are constant."""
        beta, decay = self.momentum, self.weight_decay
        if self.coupled:
            return np.array([1.0, -(1.0 + beta - self._rates[0] * decay), beta])
        return np.array([1.0, -(1.0 - decay) - beta, (1.0 - decay) * beta])

    def dense(self) -> Array:
        """A itself, shape (steps, steps), by the recursion."""
        out, state = np.zeros((self.steps, self.steps)), self.init()
        for t, unit in enumerate(np.eye(self.steps)):
            out[t], state = self.step(unit, state)
        return out

    def init(self) -> State:
        """Step, momentum and model."""
        return (0, 0.0, 0.0)

    def step(self, gradient: Any, state: State) -> tuple[Any, State]:
        """One step of the recursion."""
        t, momentum, model = state
        momentum = self.momentum * momentum + gradient
        if self.coupled:
            momentum = momentum - self.weight_decay * model
            model = model + self._rates[t] * momentum
        else:
            model = (1.0 - self.weight_decay) * model + self._rates[t] * momentum
        return model, (t + 1, momentum, model)

    def apply(self, x: Array) -> Array:
        """A x in O(n) for every column."""
        if self._constant:
            return np.asarray(lfilter(self._rates[:1], self._denominator, x, axis=0))
        if self.coupled:
            out, state = np.empty(np.shape(x)), self.init()
            for t in range(self.steps):
                out[t], state = self.step(x[t], state)
            return out
        momenta = lfilter([1.0], [1.0, -self.momentum], x, axis=0)
        return np.asarray(lfilter([1.0], [1.0, self.weight_decay - 1.0], _scale(self._rates, momenta), axis=0))

    def apply_transpose(self, x: Array) -> Array:
        """A^T x in O(n) for every column: the recursion run backwards."""
        if self._constant:
            return np.asarray(lfilter(self._rates[:1], self._denominator, x[::-1], axis=0)[::-1])
        if not self.coupled:
            model = lfilter([1.0], [1.0, self.weight_decay - 1.0], x[::-1], axis=0)[::-1]
            return np.asarray(lfilter([1.0], [1.0, -self.momentum], _scale(self._rates, model)[::-1], axis=0)[::-1])
        out, model, momentum = np.empty(np.shape(x)), np.zeros(np.shape(x)[1:]), np.zeros(np.shape(x)[1:])
        for t in range(self.steps - 1, -1, -1):
            model = model + x[t]
            momentum = momentum + self._rates[t] * model
            out[t] = momentum
            model = model - self.weight_decay * momentum
            momentum = self.momentum * momentum
        return out

    def solve(self, x: Array) -> Array:
        """A^-1 x in O(n) for every column: the gradients that lead to the models x."""
        before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
        kept = 1.0 if self.coupled else 1.0 - self.weight_decay
        momenta = _scale(1.0 / self._rates, x - kept * before)
        gradients = momenta - self.momentum * np.concatenate([np.zeros_like(x[:1]), momenta[:-1]])
        return np.asarray(gradients + self.weight_decay * before if self.coupled else gradients)

    def coefficients(self) -> Array | None:
        """rate / ((1 - (1 - weight_decay) x)(1 - momentum x)), or its coupled form, where the rates are constant."""
        if not self._constant:
            return None
        return self._rates[0] * _series.divide(np.ones(1), self._denominator, self.steps)

    def row_norms(self, coefficients: Array) -> Array:
        """Row norms of A T: O(steps) where the rates are constant, else O(steps^2) in O(steps) memory."""
        if not self._constant:
            return np.array([np.linalg.norm(row) for row in self._rows(coefficients)])
        return toeplitz_row_norms(self._rates[0] * _series.divide(coefficients, self._denominator, self.steps))

    def _rows(self, coefficients: Array) -> Iterator[Array]:
        taps = np.zeros(self.steps)
        taps[: len(coefficients)] = coefficients[: self.steps]
        state, row = self.init(), np.zeros(self.steps)
        for t in range(self.steps):
            row[: t + 1] = taps[t::-1]
            model, state = self.step(row, state)
            yield model

    def root(self, sign: int) -> Array:
        """Coefficients of (denominator(x) / rate)^(-sign / 2), shape (steps,), a product of two binomial series.

        Raises:
            ValueError: the rates change, so that A isn't a Toeplitz matrix.
        """
        if not self._constant:
            raise _checks.fail(
                "learning_rates", "a schedule", "A is no Toeplitz matrix, so it has no Toeplitz root",
                "take the root of Sgd without learning_rates",
            )  # fmt: skip
        exponent = -0.5 * sign
        _, sum_, product = self._denominator
        # the two factors 1 - a x, 1 - b x of the denominator; a complex pair where momentum and decay oscillate
        a = 0.5 * (-sum_ + np.emath.sqrt(sum_ * sum_ - 4.0 * product))
        if not self.coupled:
            a = max(self.momentum, 1.0 - self.weight_decay)
        b = product / a
        if np.iscomplexobj(a):
            first = power_coefficients(exponent, a, self.steps)
            series = _conjugate_square(first, self.steps)
        else:
            first, second = (power_coefficients(exponent, float(x), self.steps) for x in (a, b))
            series = _series.multiply(first, second, self.steps)
        return np.asarray(self._rates[0] ** (0.5 * sign) * series)


def _scale(weights: Array, x: Array) -> Array:
    return np.asarray((weights * x.T).T)


def _read_ahead(scheduler: Any, steps: int) -> list[float]:
    """The rates that a torch scheduler will set over `steps` steps, from a copy of it on a stand-in optimizer."""
    optimizer = scheduler.optimizer
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    # what schedulers look for in an optimizer that has begun to step: without it they warn
    step = SimpleNamespace(_wrapped_by_lr_sched=True)
    stand_in = SimpleNamespace(param_groups=groups, defaults=dict(optimizer.defaults), _opt_called=True, step=step)
    ahead = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    rates = []
    for _ in range(steps):
        rates.append(float(groups[0]["lr"]))
        ahead.step()
    return rates


def _conjugate_square(series: Array, length: int) -> Array:
    """First coefficients of series times its complex conjugate: sums of real and imaginary squares."""
    real, imaginary = np.ascontiguousarray(series.real), np.ascontiguousarray(series.imag)
    return _series.multiply(real, real, length) + _series.multiply(imaginary, imaginary, length)
