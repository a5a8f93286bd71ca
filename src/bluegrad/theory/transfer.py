"""Transfer functions N(w) = sum_t n_t e^(i w t) of Toeplitz noisings: spectra, sensitivity, gain of a filter."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from scipy import fft

from bluegrad import _checks, _series
from bluegrad.strategy import Strategy, banded_inverse_toeplitz
from bluegrad.strategy.base import Array
from bluegrad.theory import _quadrature
from bluegrad.workload import power_coefficients

# Frequencies times coefficients evaluated at once.
_BLOCK = 1 << 22
_HORIZON = 1 << 20


class Transfer(ABC):
    """N(x) = sum_t n_t x^t, n_0 = 1, at x = e^(i w): how a noising of endless steps colours its noise."""

    name: str

    @abstractmethod
    def power(self, frequencies: Array) -> Array:
        """|N(w)|^2, same shape as the frequencies (radians a step)."""

    @property
    @abstractmethod
    def gamma(self) -> float:
        """gamma_inf = (sum_t c_t^2)^(1/2), C = 1 / N: sensitivity of one participation; inf where it diverges."""

    @abstractmethod
    def coefficients(self, length: int) -> Array:
        """n_0 .. n_(length - 1)."""

    @abstractmethod
    def gain(self, rates: Array) -> Array:
        """Mean over w of |N(w)|^2 / |1 - a - e^(iw)|^2 for every a in (0, 2): variance of y <- (1 - a) y + (N z)_t."""

    def mean(self, function: Callable[[Array], Array], low: float) -> float:
        """(1 / 2 pi) times the integral of an even function of frequency, at least `low` wide at 0."""
        nodes, weights = _quadrature.grid(min(low, self._low), self._high, self._widest)
        return float(weights @ function(nodes))

    # width of the narrowest feature of |N|^2 at 0 and at pi, and of the panels that resolve it
    _low: float = math.pi
    _high: float = math.pi
    _widest: float = math.pi

    @property
    def finite(self) -> bool:
        """Whether gamma is finite: only then is there privacy over endless steps."""
        return math.isfinite(self.gamma)

    def strategy(self, steps: int, *, bands: int | None = None) -> Strategy:
        """A strategy that trains with this noise.

        Args:
            steps: number of steps n.
            bands: coefficients of N that are kept; all n if not given, which is exact.

        Returns:
            The strategy, N lower-triangular Toeplitz, shape (n, n).

        Raises:
            ValueError: steps or bands aren't positive, or more bands than steps.
        """
        _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
        fix = f"give at most steps={steps}, or none for all"
        kept = steps if bands is None else _checks.integer("bands", bands, minimum=1, fix=fix)
        if kept > steps:
            raise _checks.fail("bands", bands, f"must be at most steps={steps}", fix)
        return banded_inverse_toeplitz(self.coefficients(kept), steps)

    def _quadrature_gain(self, rates: Array) -> Array:
        a = check_rates(rates)
        low, high = min(float(a.min()), self._low), min(float((2.0 - a).min()), self._high)
        nodes, weights = _quadrature.grid(low, high, self._widest)
        weighted = weights * self.power(nodes)
        return np.array([weighted @ (1.0 / distance(nodes, 1.0 - rate)) for rate in a])


@final
@dataclass(frozen=True)
class Factored(Transfer):
    """N(x) = prod_i (1 - r_i x)^(p_i): r of absolute value at most 1, any real p."""

    name: str
    bases: tuple[float, ...]
    exponents: tuple[float, ...]

    def power(self, frequencies: Array) -> Array:
        """|N(w)|^2 = prod_i |1 - r_i e^(iw)|^(2 p_i)."""
        out = np.zeros(np.shape(frequencies))
        for base, exponent in zip(self.bases, self.exponents):
            out += exponent * np.log(distance(frequencies, base))
        return np.exp(out)

    @cached_property
    def gamma(self) -> float:
        """Square root of the mean of 1 / |N|^2, which diverges if |N|^2 vanishes at 0 or pi like w^q, q >= 1."""
        for end in (1.0, -1.0):
            if sum(2.0 * p for r, p in zip(self.bases, self.exponents) if r == end) >= 1.0:
                return math.inf
        return math.sqrt(self.mean(lambda w: 1.0 / self.power(w), self._low))

    def coefficients(self, length: int) -> Array:
        """Exponential of the series -sum_i p_i sum_k (r_i x)^k / k; exact to the last digit for one factor."""
        check_length(length)
        if len(self.bases) == 1:
            return power_coefficients(self.exponents[0], self.bases[0], length)
        k = np.arange(1, length)
        log = np.zeros(length)
        for base, exponent in zip(self.bases, self.exponents):
            log[1:] -= exponent * float(np.sign(base)) ** k * np.exp(k * math.log(abs(base))) / k if base else 0.0
        return exponential(log)

    def gain(self, rates: Array) -> Array:
        """By quadrature; inf where |N|^2 has a pole that isn't integrable."""
        for end in (1.0, -1.0):
            if sum(2.0 * p for r, p in zip(self.bases, self.exponents) if r == end) <= -1.0:
                return np.full(len(check_rates(rates)), math.inf)
        return self._quadrature_gain(rates)

    @property
    def _low(self) -> float:  # type: ignore[override]
        return min([math.pi, *(1.0 - r for r in self.bases if r > 0.0)])

    @property
    def _high(self) -> float:  # type: ignore[override]
        return min([math.pi, *(1.0 + r for r in self.bases if r < 0.0)])


@final
@dataclass(frozen=True, eq=False)
class Moving(Transfer):
    """N of finitely many coefficients: noise as a moving average of raw noise."""

    name: str
    values: Array

    def power(self, frequencies: Array) -> Array:
        """|N(w)|^2 from the coefficients."""
        return polynomial_power(self.values, frequencies)

    @cached_property
    def gamma(self) -> float:
        """Step-down recursion of the autoregression 1 / N: inf unless all zeros of N lie outside the unit disc."""
        return 1.0 / abs(float(self.values[0])) * autoregression_norm(self.values / self.values[0])

    def coefficients(self, length: int) -> Array:
        """The coefficients, then zeros."""
        check_length(length)
        out = np.zeros(length)
        out[: len(self.values)] = self.values[:length]
        return out

    def gain(self, rates: Array) -> Array:
        """Exactly, in the time domain: sum over lags k of the autocorrelation times (1 - a)^|k| / (a (2 - a))."""
        a = check_rates(rates)
        lags = _autocorrelation(self.values)
        ratio = 1.0 - a
        total = np.full(len(a), lags[-1])
        for lag in lags[-2:0:-1]:
            total = total * ratio + lag
        total = lags[0] + (2.0 * total * ratio if len(lags) > 1 else 0.0)
        return total / (a * (2.0 - a))

    @property
    def _widest(self) -> float:  # type: ignore[override]
        return 8.0 / len(self.values)


@final
@dataclass(frozen=True, eq=False)
class Autoregressive(Transfer):
    """N = 1 / C for C of finitely many coefficients: noise by a recurrence."""

    name: str
    values: Array

    def power(self, frequencies: Array) -> Array:
        """|N(w)|^2 = 1 / |C(w)|^2."""
        return 1.0 / polynomial_power(self.values, frequencies)

    @cached_property
    def gamma(self) -> float:
        """Norm of the coefficients of C."""
        return float(np.linalg.norm(self.values))

    def coefficients(self, length: int) -> Array:
        """The inverse series of C."""
        check_length(length)
        return _series.inverse(self.values, length)

    def gain(self, rates: Array) -> Array:
        """By quadrature; inf where the recurrence isn't stable."""
        if not math.isfinite(autoregression_norm(self.values / self.values[0])):
            return np.full(len(check_rates(rates)), math.inf)
        return self._quadrature_gain(rates)

    @property
    def _widest(self) -> float:  # type: ignore[override]
        return 8.0 / len(self.values)

    @property
    def _low(self) -> float:  # type: ignore[override]
        return 1e-3 / len(self.values)

    @property
    def _high(self) -> float:  # type: ignore[override]
        return 1e-3 / len(self.values)


def distance(frequencies: Array, ratio: float) -> Array:
    """|1 - r e^(iw)|^2 = |r - e^(iw)|^2, without cancellation for r near 1 and w near 0."""
    w = np.asarray(frequencies)
    if ratio >= 0.0:
        return (1.0 - ratio) ** 2 + ratio * (2.0 * np.sin(w / 2.0)) ** 2
    return (1.0 + ratio) ** 2 - ratio * (2.0 * np.cos(w / 2.0)) ** 2


def exponential(log: Array) -> Array:
    """exp of a series without constant term, by Newton's doubling: y <- y (1 + log - log y)."""
    out = np.ones(1)
    while len(out) < len(log):
        size = min(2 * len(out), len(log))
        k = np.arange(1, size)
        slope = np.zeros(size)
        slope[: len(out) - 1] = np.arange(1, len(out)) * out[1:]
        logarithm = np.zeros(size)
        logarithm[1:] = _series.multiply(slope, _series.inverse(out, size), size)[:-1] / k
        correction = log[:size] - logarithm
        correction[0] = 1.0
        out = _series.multiply(out, correction, size)
    return out


def autoregression_norm(monic: Array) -> float:
    """Norm of the series 1 / P for P(0) = 1: prod (1 - k^2)^(-1/2) over P's reflection coefficients.

    inf if one has absolute value 1 or more, that is if P has a zero in the closed unit disc (Schur and Cohn).
    """
    p, log, rounding = np.array(_series.strip(monic)), 0.0, 64.0 * float(np.finfo(np.float64).eps)
    while len(p) > 1:
        k = float(p[-1])
        # a coefficient that rounding can't tell from 1 is a zero on the circle, whose series has an infinite norm
        if abs(k) >= 1.0 - rounding:
            return math.inf
        log -= 0.5 * math.log1p(-k * k)
        p = (p[:-1] - k * p[:0:-1]) / (1.0 - k * k)
        rounding = min(rounding / (1.0 - abs(k)), 0.5)
    return math.exp(log)


def polynomial_power(coefficients: Array, frequencies: Array) -> Array:
    """|sum_t x_t e^(iwt)|^2, in blocks."""
    w = np.asarray(frequencies, dtype=np.float64)
    flat, out = w.ravel(), np.empty(w.size)
    rows = max(_BLOCK // len(coefficients), 1)
    t = np.arange(len(coefficients))
    for start in range(0, len(flat), rows):
        phase = np.outer(flat[start : start + rows], t)
        out[start : start + rows] = (np.cos(phase) @ coefficients) ** 2 + (np.sin(phase) @ coefficients) ** 2
    return out.reshape(w.shape)


def _autocorrelation(x: Array) -> Array:
    size = fft.next_fast_len(2 * len(x), real=True)
    return np.asarray(fft.irfft(np.abs(fft.rfft(x, size)) ** 2, size)[: len(x)])


def check_rates(rates: Array) -> Array:
    """Products a = eta * eigenvalue, each in (0, 2).

    Raises:
        ValueError: one of them is not.
    """
    a = _checks.vector("rates", rates, fix="give products of learning rate and eigenvalue in (0, 2)")
    if (a <= 0.0).any() or (a >= 2.0).any():
        bad = int(np.flatnonzero((a <= 0.0) | (a >= 2.0))[0])
        raise _checks.fail(
            f"rates[{bad}]", float(a[bad]), "must lie in (0, 2)", "gradient descent diverges for a learning rate of 2/L"
        )
    return a


def check_length(length: int) -> int:
    """A number of coefficients.

    Raises:
        ValueError: it isn't between 1 and 2^20.
    """
    fix = f"give how many coefficients you need, at most {_HORIZON}"
    if _checks.integer("length", length, minimum=1, fix=fix) > _HORIZON:
        raise _checks.fail("length", length, f"must be at most {_HORIZON}", fix)
    return length
