"""Noisy-SGD, Noisy-FTRL and DP-FTRL on quadratic problems, simulated in the Hessian's eigenbasis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from bluegrad import _checks, _series
from bluegrad.strategy.base import Array
from bluegrad.theory._filter import VALUES, Filtered, taps
from bluegrad.theory.problem import Problem, check_problem, check_transfer
from bluegrad.theory.transfer import Transfer

_GRADIENTS = ("expected", "sampled")
_RECORDS = 4096
# Steps of memory up to which splitting the directions saves nothing.
_COUPLED = 1024


@dataclass(frozen=True, eq=False)
class Simulation:
    """F(theta_t) - F(theta*) over time, and what share of the gradients was clipped.

    Attributes:
        times: steps after which errors were recorded, shape (records,).
        errors: suboptimality, shape (records, repeats).
        clipped: share of gradients that were clipped.
    """

    times: Array
    errors: Array
    clipped: float

    def stationary(self, burn_in: int) -> Estimate:
        """Mean error after a burn-in, with its standard error over the repeats.

        Args:
            burn_in: steps at the start that don't count.

        Returns:
            The estimate.

        Raises:
            ValueError: nothing was recorded after the burn-in, or fewer than two repeats.
        """
        late = self.errors[self.times > burn_in]
        fix = f"give less than the {int(self.times[-1])} steps"
        if not len(late):
            raise _checks.fail("burn_in", burn_in, "leaves no step", fix)
        if late.shape[1] < 2:
            raise _checks.fail("repeats", late.shape[1], "must be at least 2 for a standard error", "simulate more")
        means = late.mean(axis=0)
        return Estimate(float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means)), len(means))


@dataclass(frozen=True)
class Estimate:
    """A mean over independent repeats and its standard error."""

    mean: float
    standard_error: float
    repeats: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Student's confidence interval.

        Args:
            confidence: its level, in (0, 1).

        Returns:
            Lower and upper end.

        Raises:
            ValueError: confidence outside (0, 1).
        """
        _checks.real("confidence", confidence, low=0.0, high=1.0, low_open=True, high_open=True, fix="commonly 0.95")
        half = float(special.stdtrit(self.repeats - 1, (1.0 + confidence) / 2.0)) * self.standard_error
        return self.mean - half, self.mean + half


def simulate(
    problem: Problem,
    noise: Transfer,
    *,
    steps: int,
    repeats: int = 16,
    gradients: str = "expected",
    clip: bool = False,
    start: ArrayLike | None = None,
    learning_rates: ArrayLike | None = None,
    seed: int = 0,
) -> Simulation:
    """Run noisy gradient descent many times at once: theta <- theta - eta_t (g_t + s_dp (N z)_t).

    With `gradients="expected"`, g = H theta + s_sgd H^(1/2) u, what the theory is exact for, and mean estimation for
    H = I. With "sampled", every step draws one example of linear regression: x ~ N(0, H), g = x (x^T theta - xi),
    xi ~ N(0, s_sgd^2). Without clipping it is Noisy-SGD or Noisy-FTRL; with it, DP-FTRL. s_dp is
    G gamma / (2 rho)^(1/2); where gamma diverges, that of the finite horizon takes its place.

    The raw noise is numpy's, for experiments alone: never use it for privacy.

    Args:
        problem: the quadratic problem.
        noise: transfer function of the noising.
        steps: number of steps n.
        repeats: independent runs.
        gradients: "expected" or "sampled".
        clip: whether gradients are clipped to the problem's clip norm.
        start: theta_0 - theta* in the eigenbasis, in the order of the eigenvalues, shape (d,); 0 if not given.
        learning_rates: one rate a step, shape (steps,), in place of the problem's.
        seed: of numpy's generator.

    Returns:
        The errors over time, at most 4096 records.

    Raises:
        ValueError: an argument out of range, or a memory of the noise that doesn't fit.

    Example:
        >>> from bluegrad.theory.named import white
        >>> run = simulate(Problem([1.0], learning_rate=0.5), white(), steps=2000, repeats=8)
        >>> low, high = run.stationary(burn_in=50).interval(0.999)
        >>> low < 0.5 * 0.25 * 0.5 / (0.5 * 1.5) < high
        True

    Source: arXiv 2310.06771, algorithm 1 and section 2.
    """
    check_problem(problem)
    check_transfer(noise)
    _checks.integer("steps", steps, minimum=1, fix="give the number of steps")
    _checks.integer("repeats", repeats, minimum=1, fix="16 give a standard error")
    _checks.choice("gradients", gradients, _GRADIENTS)
    if problem.multiplicities is not None:
        raise _checks.fail("problem.multiplicities", "given", "can't be simulated", "repeat the eigenvalues instead")
    d = len(problem.spectrum)
    theta0 = np.zeros(d) if start is None else _checks.vector("start", start, fix=f"give {d} coordinates")
    rates = _rates(problem, learning_rates, steps)
    if len(theta0) != d:
        raise _checks.fail("len(start)", len(theta0), f"must equal the {d} eigenvalues", "give one coordinate each")
    run = _Run(problem, noise, steps, repeats, rates, gradients == "sampled", clip)
    every = -(-steps // _RECORDS)
    times = np.arange(every, steps + 1, every)
    generator = np.random.default_rng(seed)
    errors, clipped = np.zeros((len(times), repeats)), 0
    for columns in run.parts():
        part, hits = run.errors(columns, theta0[columns], every, len(times), generator)
        errors += part
        clipped += hits
    return Simulation(times.astype(np.float64), errors, clipped / (steps * repeats))


def _rates(problem: Problem, given: ArrayLike | None, steps: int) -> Array:
    if given is None:
        return np.full(steps, problem.learning_rate)
    rates = _checks.vector("learning_rates", given, fix=f"give one rate a step, {steps} of them")
    if len(rates) != steps:
        raise _checks.fail("len(learning_rates)", len(rates), f"must equal steps={steps}", "give one rate a step")
    limit = 2.0 / float(problem.spectrum.max())
    if (rates < 0.0).any() or (rates >= limit).any():
        bad = int(np.flatnonzero((rates < 0.0) | (rates >= limit))[0])
        raise _checks.fail(
            f"learning_rates[{bad}]", float(rates[bad]), f"must lie in [0, 2 / L = {limit:.6g})", "lower it"
        )
    return rates


@dataclass(frozen=True, eq=False)
class _Run:
    problem: Problem
    noise: Transfer
    steps: int
    repeats: int
    rates: Array
    sampled: bool
    clip: bool

    def parts(self) -> Iterator[slice]:
        """Directions that are simulated together: all, where a gradient's length couples them."""
        d = len(self.problem.spectrum)
        memory = max(len(taps(self.noise, self.steps, self._slowest)), _COUPLED)
        size = d if self.sampled or self.clip else min(d, max(VALUES // (self.repeats * memory), 1))
        for start in range(0, d, size):
            yield slice(start, start + size)

    @property
    def _slowest(self) -> float:
        return self.problem.learning_rate * float(self.problem.spectrum.min())

    @property
    def scale(self) -> float:
        """s_dp."""
        gamma = self.noise.gamma
        if not math.isfinite(gamma):
            gamma = float(np.linalg.norm(_series.inverse(self.noise.coefficients(self.steps), self.steps)))
        return self.problem.clip_norm * gamma / math.sqrt(2.0 * self.problem.rho)

    def errors(
        self, columns: slice, start: Array, every: int, records: int, generator: np.random.Generator
    ) -> tuple[Array, int]:
        """Recorded errors of some directions, shape (records, repeats), and how many gradients were clipped."""
        values = self.problem.spectrum[columns]
        r, d = self.repeats, len(values)
        own, raw = generator.spawn(2)
        source = Filtered(self.noise, self.steps, r * d, self._slowest, raw)
        theta, out, clipped = np.tile(start, (r, 1)), np.zeros((records, r)), 0
        scale, done = np.float32(self.scale), 0
        for block in source.blocks(self.steps):
            for row in (scale * block).reshape(-1, r, d):
                gradient = self._gradient(theta, values, own)
                if self.clip:
                    length = np.sqrt(np.einsum("rd,rd->r", gradient, gradient))
                    over = length > self.problem.clip_norm
                    clipped += int(over.sum())
                    gradient *= np.where(over, self.problem.clip_norm / np.where(over, length, 1.0), 1.0)[:, None]
                gradient += row
                gradient *= self.rates[done]
                theta -= gradient
                done += 1
                if done % every == 0:
                    out[done // every - 1] = 0.5 * np.einsum("rd,d,rd->r", theta, values, theta)
        return out, clipped

    def _gradient(self, theta: Array, values: Array, generator: np.random.Generator) -> Array:
        spread = self.problem.sgd_noise
        if self.sampled:
            x = generator.standard_normal(theta.shape, dtype=np.float32) * np.sqrt(values)
            residual = np.einsum("rd,rd->r", x, theta)
            if spread:
                residual -= spread * generator.standard_normal(len(theta))
            return np.asarray(residual[:, None] * x)
        out = values * theta
        if spread:
            out += (spread * np.sqrt(values)) * generator.standard_normal(theta.shape, dtype=np.float32)
        return np.asarray(out)
