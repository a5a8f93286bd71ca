"""Finite horizons: the gradient norm bound against simulation, and the clip norm that clips nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bluegrad import theory

PROBLEM = theory.Problem([1.0, 0.5, 0.1], 0.1, clip_norm=1.0, rho=50.0, sgd_noise=0.2)
NOISE = theory.damped_root(0.01)


def longest_gradients(problem, noise, steps, repeats, start):
    """Longest gradient of every run, by a loop of its own."""
    rng = np.random.default_rng(7)
    values, eta = problem.spectrum, problem.learning_rate
    n = noise.coefficients(steps)
    dense = np.array([np.concatenate([n[t::-1], np.zeros(steps - 1 - t)]) for t in range(steps)])
    scale = problem.clip_norm * noise.gamma / math.sqrt(2 * problem.rho)
    private = scale * np.einsum("st,trd->srd", dense, rng.standard_normal((steps, repeats, len(values))))
    theta, longest = np.tile(start, (repeats, 1)), np.zeros(repeats)
    for t in range(steps):
        g = values * theta + problem.sgd_noise * np.sqrt(values) * rng.standard_normal(theta.shape)
        longest = np.maximum(longest, np.linalg.norm(g, axis=1))
        theta = theta - eta * (g + private[t])
    return longest


@pytest.mark.parametrize("start", [[0.0, 0.0, 0.0], [0.5, -0.5, 1.0]])
def test_the_bound_holds_and_is_not_far_off(start):
    longest = longest_gradients(PROBLEM, NOISE, 300, 200, np.array(start))
    bound = theory.gradient_norm_bound(PROBLEM, NOISE, steps=300, failure=0.01, start=start)
    assert np.mean(longest > bound) <= 0.01
    assert bound < 3.0 * np.median(longest)


def test_the_safe_clip_norm_is_its_own_bound_and_clips_nothing():
    safe = theory.safe_clip_norm(PROBLEM, NOISE, steps=400)
    at = replace(PROBLEM, clip_norm=safe)
    assert theory.gradient_norm_bound(at, NOISE, steps=400) == pytest.approx(safe, rel=1e-12)
    assert theory.simulate(at, NOISE, steps=400, repeats=50, clip=True).clipped == 0.0
    tight = replace(PROBLEM, clip_norm=safe / 8)
    assert theory.simulate(tight, NOISE, steps=400, repeats=50, clip=True).clipped > 0.0


def test_correlated_noise_allows_a_clip_norm_where_independent_noise_does_not():
    problem = theory.Problem([1.0] * 50, 0.1, rho=2.0, sgd_noise=0.1)
    assert theory.safe_clip_norm(problem, theory.white(), steps=100) == math.inf
    assert math.isfinite(theory.safe_clip_norm(problem, theory.optimal_noise(problem), steps=100))


def test_divergent_noise_has_no_bound():
    assert theory.gradient_norm_bound(PROBLEM, theory.damped_root(0.0), steps=10) == math.inf
    assert theory.safe_clip_norm(PROBLEM, theory.damped_difference(0.0), steps=10) == math.inf
    assert theory.utility_bound(PROBLEM, theory.damped_difference(0.0), steps=10).total == math.inf


def test_the_utility_bound_is_that_of_the_clipped_run():
    start, steps = [1.0, -1.0, 2.0], 60
    bound = theory.utility_bound(PROBLEM, NOISE, steps=steps, start=start)
    at = replace(PROBLEM, clip_norm=bound.clip_norm)
    run = theory.simulate(at, NOISE, steps=steps, repeats=4000, clip=True, start=start)
    final = run.errors[-1]
    error = 4 * final.std() / math.sqrt(len(final))
    assert run.clipped == 0.0 and run.times[-1] == steps
    assert final.mean() - error < bound.total
    # the parts: what remains of the start is exact, and noise has nearly settled
    assert bound.start > 1e-3 * bound.total
    assert bound.total < 1.5 * final.mean() + error
    # a bound at the problem's own clip norm would be too small by far
    assert bound.total - bound.private + bound.private / bound.clip_norm**2 < final.mean() - error


def test_private_error_falls_like_the_square_of_time_under_correlated_noise_alone():
    def private(noise, n):
        eta = math.log(n) / (0.1 * n)
        problem = theory.Problem([1.0] * 3 + [0.1] * 10, eta, rho=50.0, sgd_noise=0.01)
        return theory.utility_bound(problem, noise(eta), steps=n, start=np.full(13, 0.1)).private

    def slope(noise):
        return math.log(private(noise, 10**6) / private(noise, 10**4)) / math.log(100.0)

    assert slope(lambda eta: theory.white()) == pytest.approx(-1.0, abs=0.15)
    assert -2.0 < slope(lambda eta: theory.damped_root(0.1 * eta)) < -1.5  # squares of logarithms take the rest


def test_half_exponential_decay():
    n = theory.damped_root(0.1).coefficients(3000)
    assert theory.half_exponential_constant(n, 0.1) == pytest.approx(0.5, rel=1e-9)
    assert theory.half_exponential_constant(n, 0.05) == pytest.approx(0.5 * 0.9 / 0.95, rel=1e-9)
    # a claim of faster decay than there is: the constant grows with the horizon
    short, long = (theory.half_exponential_constant(n[:length], 0.12) for length in (100, 1000))
    assert long > 1e6 * short
    assert theory.half_exponential_constant([1.0], 0.1) == 0.0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: theory.gradient_norm_bound(PROBLEM, NOISE, steps=0), "steps=0"),
        (lambda: theory.gradient_norm_bound(PROBLEM, NOISE, steps=5, failure=0.0), r"failure=0\.0"),
        (lambda: theory.gradient_norm_bound(PROBLEM, NOISE, steps=5, start=[1.0]), r"len\(start\)=1"),
        (lambda: theory.safe_clip_norm(None, NOISE, steps=5), r"theory\.Problem"),
        (lambda: theory.utility_bound(PROBLEM, NOISE, steps=5, start=[1.0, 2.0, 3.0, 4.0]), r"len\(start\)=4"),
        (lambda: theory.half_exponential_constant([1.0, math.nan], 0.1), r"coefficients\[1\]=nan"),
        (lambda: theory.half_exponential_constant([1.0], 1.0), r"nu=1\.0"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()
