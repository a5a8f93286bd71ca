"""Asymptotic suboptimality: closed forms, quadrature, bounds, the optimal noise, published and reference numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ellipk

import bluegrad as bg
from bluegrad import theory
from bluegrad.theory.closed import root_gain

SPECTRA = {
    "mean": ([1.0], 0.1),
    "flat": ([1.0] * 7, 0.5),
    "1/k": (1.0 / np.arange(1, 129), 0.02),
    "1/k^2": (1.0 / np.arange(1, 129) ** 2, 0.02),
    "fast": ([1.9, 1.0, 0.3, 0.001], 1.0),
}
each_spectrum = pytest.mark.parametrize(("eigenvalues", "rate"), SPECTRA.values(), ids=SPECTRA)


def random_problems(count: int, *, largest_rate: float = 1.0) -> list[theory.Problem]:
    rng = np.random.default_rng(5)
    out = []
    for _ in range(count):
        eigenvalues = 10.0 ** rng.uniform(-3, 0.5, rng.integers(1, 40))
        rate = rng.uniform(0.01, largest_rate) / eigenvalues.max()
        out.append(
            theory.Problem(eigenvalues, rate, clip_norm=rng.uniform(0.5, 2), rho=rng.uniform(0.1, 2), sgd_noise=1)
        )
    return out


def dense_suboptimality(problem, coefficients):
    """Private part by running the recursion of every direction on the impulse response, nothing in frequency."""
    steps = len(coefficients)
    c = bg.banded_inverse_toeplitz(coefficients, steps).coefficients()
    total = 0.0
    for value in problem.spectrum:
        y = np.zeros(steps)
        for t in range(steps):
            y[t] = coefficients[t] + (1.0 - problem.learning_rate * value) * y[t - 1] if t else coefficients[0]
        total += value * (y @ y)
    noise = problem.clip_norm**2 * (c @ c) / (2 * problem.rho)
    return 0.5 * problem.learning_rate**2 * noise * total


@each_spectrum
def test_closed_forms_against_quadrature(eigenvalues, rate):
    problem = theory.Problem(eigenvalues, rate, clip_norm=1.5, rho=0.3)
    white = theory.suboptimality(problem, theory.white()).private
    assert theory.white_private(problem) == pytest.approx(white, rel=1e-12)
    for nu in (0.7, 0.05, 1e-3, 1e-5):
        root = theory.suboptimality(problem, theory.damped_root(nu)).private
        assert theory.root_private(problem, nu) == pytest.approx(root, rel=1e-8)
        difference = theory.suboptimality(problem, theory.damped_difference(nu)).private
        assert theory.difference_private(problem, nu) == pytest.approx(difference, rel=1e-8)


def test_against_the_recursion_itself():
    problem = theory.Problem([1.2, 0.4, 0.1], 0.3, clip_norm=2.0, rho=0.7)
    for noise in (
        theory.white(),
        theory.damped_root(0.05),
        theory.damped_difference(0.1),
        theory.optimal_noise(problem),
    ):
        exact = dense_suboptimality(problem, noise.coefficients(1500))
        assert theory.suboptimality(problem, noise).private == pytest.approx(exact, rel=1e-7)


def test_reference_values_of_mean_estimation():
    problem = theory.Problem([1.0], 0.1)
    assert 2 * theory.white_private(problem) == pytest.approx(0.0263158, abs=5e-8)
    assert 2 * theory.optimal_private(problem) == pytest.approx(0.0105392, abs=5e-8)
    assert theory.optimal_private(problem) / problem.price == pytest.approx(
        (2 / math.pi * ellipk(0.81)) ** 2, rel=1e-12
    )
    # damped Anti-PGD equals independent noise at nu = eta
    assert theory.difference_private(problem, 0.1) == pytest.approx(theory.white_private(problem), rel=1e-12)
    nu, eta = 0.3, 0.1
    stated = (eta**2 / 2) / (nu * (2 - nu)) * (1 + (nu - eta) ** 2 / (eta * (2 - eta)))
    assert 2 * theory.difference_private(problem, nu) == pytest.approx(stated, rel=1e-12)


def test_at_a_learning_rate_of_one_correlation_gains_nothing():
    problem = theory.Problem([1.0], 1.0)
    assert theory.optimal_private(problem) == pytest.approx(theory.white_private(problem), rel=1e-12)
    np.testing.assert_allclose(theory.optimal_noise(problem).coefficients(4), [1, 0, 0, 0], atol=1e-12)


def test_reference_values_of_the_harmonic_spectrum():
    problem = theory.Problem(1.0 / np.arange(1, 129), 0.02)
    assert theory.optimal_private(problem) / problem.price == pytest.approx(41.483479, abs=5e-7)
    expected = [1, -0.498098, -0.124069, -0.061817, -0.038505]
    np.testing.assert_allclose(theory.optimal_noise(problem).coefficients(5), expected, atol=5e-7)


SLOPES = {0.0: (1.0, 1.0, 1.0, 1.0), 0.5: (0.999, 0.674, 0.674, 0.779), 1.0: (0.999, 0.386, 0.391, 0.616),
          2.0: (0.999, 0.094, 0.146, 0.510)}  # fmt: skip


@pytest.mark.parametrize("alpha", SLOPES)
def test_slopes_in_the_dimension(alpha):
    d = 2 ** np.arange(3, 9)
    errors = []
    for size in d:
        problem = theory.Problem(np.arange(1.0, size + 1) ** -alpha, 0.02)
        nus = np.geomspace(1e-7, 0.9, 400)
        errors.append(
            [
                theory.white_private(problem),
                theory.optimal_private(problem),
                min(theory.root_private(problem, nu) for nu in nus),
                min(theory.difference_private(problem, nu) for nu in nus),
            ]
        )
    slopes = np.polyfit(np.log(d), np.log(errors), 1)[0]
    np.testing.assert_allclose(slopes, SLOPES[alpha], atol=2e-3)


@each_spectrum
def test_optimal_noise_reaches_the_least_error_and_no_other_beats_it(eigenvalues, rate):
    problem = theory.Problem(eigenvalues, rate)
    noise = theory.optimal_noise(problem)
    least = theory.optimal_private(problem)
    assert theory.suboptimality(problem, noise).private == pytest.approx(least, rel=1e-9)
    rng = np.random.default_rng(0)
    others = [theory.white(), theory.damped_root(0.01), theory.damped_difference(0.1)]
    others += [theory.moving(noise.coefficients(20) * (1 + 0.05 * rng.standard_normal(20))) for _ in range(5)]
    for other in others:
        assert theory.suboptimality(problem, other).private >= least * (1 - 1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.6])
def test_cepstrum_against_the_factors(rate):
    problem = theory.Problem(1.0 / np.arange(1, 33), rate)
    exact = theory.optimal_noise(problem).coefficients(300)
    cepstral = theory.minimum_phase(lambda w: problem.response(w) ** -0.5, 300)
    np.testing.assert_allclose(cepstral, exact, atol=1e-11)


def test_many_eigenvalues_go_by_the_grid_and_give_the_same(monkeypatch):
    problem = theory.Problem(1.0 / np.arange(1, 33), 0.1)
    exact = theory.optimal_noise(problem)
    monkeypatch.setattr("bluegrad.theory.optimal._FACTORS", 8)
    shaped = theory.optimal_noise(problem)
    assert type(shaped) is not type(exact)
    assert shaped.gamma == pytest.approx(exact.gamma, rel=1e-10)
    np.testing.assert_allclose(shaped.coefficients(100), exact.coefficients(100), atol=1e-11)


@pytest.mark.parametrize("largest", [0.999999999, 1.0, 1.000000001])
def test_nothing_jumps_where_the_largest_rate_passes_one(largest):
    problem = theory.Problem([largest, 0.5, 0.5 * (1 + 1e-13), 0.1], 1.0)
    noise = theory.optimal_noise(problem)
    assert theory.suboptimality(problem, noise).private == pytest.approx(theory.optimal_private(problem), rel=1e-9)
    same = theory.optimal_noise(theory.Problem([0.99, 0.5, 0.5, 0.1], 1.0)).coefficients(20)
    np.testing.assert_allclose(noise.coefficients(20), same, atol=0.01)


def test_the_optimal_strategy_trains_and_fits_in_buffers():
    problem = theory.Problem(1.0 / np.arange(1, 33), 0.1)
    exact = theory.optimal_strategy(problem, 300)
    few = theory.optimal_strategy(problem, 300, tolerance=0.01)
    law, work = bg.SinglePass(300), bg.PrefixSum(300)
    assert few.memory <= 6
    assert bg.rmse(few, work, law) == pytest.approx(bg.rmse(exact, work, law), rel=0.01)
    assert theory.suboptimality(problem, theory.transfer(few)).private < 1.1 * theory.optimal_private(problem)
    assert bg.calibrate(exact, law, epsilon=1.0, delta=1e-5).noise_multiplier > 0


def test_bounds_lie_in_the_right_order():
    for problem in random_problems(60):
        low, least = theory.lower_bounds(problem), theory.optimal_private(problem)
        white = theory.suboptimality(problem, theory.white())
        nu = float(problem.rates[0]) * 0.999
        root, high = theory.root_private(problem, nu), theory.root_upper_bounds(problem, nu)
        assert low.private <= least <= min(root, white.private) * (1 + 1e-9)
        assert root <= high.private
        assert low.sgd <= white.sgd <= high.sgd


def test_lower_bound_is_tight_where_it_should_be():
    problem = theory.Problem([1.0], 1.0)
    assert theory.lower_bounds(problem).private == pytest.approx(theory.optimal_private(problem), rel=1e-12)


def test_the_lemma_behind_the_upper_bound():
    for nu in np.geomspace(1e-8, 0.99, 60):
        rates = np.geomspace(nu, 1.0, 50)
        assert (2 * math.pi * root_gain(nu, rates) <= 5.0 * math.log(8.0 / nu)).all()


def test_scaling_laws():
    base = theory.Problem([1.0, 0.3], 0.2, sgd_noise=1.0)
    noise = theory.damped_root(0.05)
    one = theory.suboptimality(base, noise)
    doubled = theory.suboptimality(theory.Problem([1.0, 0.3], 0.2, clip_norm=2.0, rho=2.0, sgd_noise=3.0), noise)
    assert doubled.private == pytest.approx(2 * one.private, rel=1e-12)
    assert doubled.sgd == pytest.approx(9 * one.sgd, rel=1e-12)
    # eigenvalues c times larger at a rate c times smaller: the same dynamics, private error scaled by 1 / c
    rescaled = theory.suboptimality(theory.Problem([4.0, 1.2], 0.05, sgd_noise=1.0), noise)
    assert rescaled.private == pytest.approx(one.private / 4.0, rel=1e-12)
    assert rescaled.sgd == pytest.approx(one.sgd, rel=1e-12)
    twice = theory.suboptimality(theory.Problem([1.0, 0.3, 1.0, 0.3], 0.2), noise)
    assert twice.private == pytest.approx(2 * one.private, rel=1e-12)


def test_multiplicities_repeat_an_eigenvalue():
    repeated = theory.Problem([1.0, 0.3, 0.3, 0.3], 0.2, sgd_noise=1.0)
    counted = theory.Problem([1.0, 0.3], 0.2, sgd_noise=1.0, multiplicities=[1, 3])
    for noise in (theory.white(), theory.damped_root(0.05), theory.optimal_noise(counted)):
        one, other = (theory.suboptimality(problem, noise) for problem in (repeated, counted))
        assert one.private == pytest.approx(other.private, rel=1e-12)
        assert one.sgd == pytest.approx(other.sgd, rel=1e-12)
    for name in ("dimension", "trace", "effective_dimension", "stable_rank"):
        assert getattr(repeated, name) == pytest.approx(getattr(counted, name))
    with pytest.raises(ValueError, match="can't be simulated"):
        theory.simulate(counted, theory.white(), steps=2)


def test_dimensions():
    problem = theory.Problem([2.0, 1.0, 1.0], 0.1)
    assert (problem.effective_dimension, problem.stable_rank, problem.condition_number) == (2.0, 1.5, 2.0)
    assert (problem.dimension, problem.trace) == (3, 4.0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: theory.Problem([1.0, 2.0], 1.0), r"learning_rate=1.0.*diverges from 2 / L = 1"),
        (lambda: theory.Problem([1.0, -0.1], 0.1), r"eigenvalues\[1\]=-0.1.*above 0.*negative"),
        (lambda: theory.Problem([1.0, 0.0], 0.1), "leave out"),
        (lambda: theory.Problem([1.0, math.nan], 0.1), r"eigenvalues\[1\]=nan"),
        (lambda: theory.Problem([1.0], math.nan), "learning_rate=nan"),
        (lambda: theory.Problem([1.0], 0.1, multiplicities=[0.0]), "multiplicities"),
        (lambda: theory.Problem([1.0], 0.1, multiplicities=[1.0, 2.0]), "multiplicities"),
        (lambda: theory.Problem([1.0], 0.1, rho=0.0), "rho=0.0"),
        (lambda: theory.Problem([1.0], 0.1, sgd_noise=-1.0), "sgd_noise=-1.0"),
        (lambda: theory.root_private(theory.Problem([1.0], 0.1), 1.0), "nu=1.0"),
        (lambda: theory.root_upper_bounds(theory.Problem([1.0], 0.1), 0.2), "nu=0.2"),
        (lambda: theory.root_upper_bounds(theory.Problem([1.0], 1.5), 0.2), "learning_rate=1.5"),
        (lambda: theory.suboptimality([1.0], theory.white()), "must be a theory.Problem"),
        (lambda: theory.suboptimality(theory.Problem([1.0], 0.1), bg.identity(3)), "must be a transfer function"),
        (lambda: theory.minimum_phase(lambda w: np.sin(w) ** 2, 4), "must be positive"),
        (lambda: theory.minimum_phase(lambda w: 1e-14 + np.sin(w / 2) ** 2, 4), "too narrow"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_undamped_closed_forms_diverge():
    problem = theory.Problem([1.0], 0.1)
    assert theory.root_private(problem, 0.0) == math.inf == theory.difference_private(problem, 0.0)
