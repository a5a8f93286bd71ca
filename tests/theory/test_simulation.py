"""Simulators: the filter against dense products, errors against the exact theory, and wrong theory that must fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

import bluegrad as bg
from bluegrad import theory
from bluegrad.theory._filter import Filtered, taps

SMALL = theory.Problem([1.0, 0.4, 0.2], 0.25, sgd_noise=0.3)


@pytest.mark.parametrize(
    "noise",
    [
        theory.white(),
        theory.damped_difference(0.3),
        theory.damped_root(0.02),
        theory.moving([2.0, -0.5]),
        theory.transfer(bg.toeplitz([1.0, 0.5, 0.25], steps=10)),
    ],
    ids=lambda noise: noise.name,
)
def test_filtered_noise_is_the_dense_product(noise):
    steps, columns = 700, 300
    source = Filtered(noise, steps, columns, 1e-4, np.random.default_rng(3))
    found = np.concatenate([source.block(rows) for rows in (1, 299, 400)])
    raw_source = np.random.default_rng(3)
    shape = (lambda rows: (columns, rows)) if source._long else (lambda rows: (rows, columns))
    blocks = [raw_source.standard_normal(shape(rows), dtype=np.float32) for rows in (1, 299, 400)]
    raw = np.concatenate([block.T if source._long else block for block in blocks])
    n = noise.coefficients(steps)
    dense = np.array([np.concatenate([n[t::-1], np.zeros(steps - 1 - t)]) for t in range(steps)])
    np.testing.assert_allclose(found, dense @ raw, atol=2e-5 if len(taps(noise, steps, 1e-4)) < 100 else 2e-3)


def test_directions_in_parts_are_the_whole(monkeypatch):
    noise = theory.damped_root(0.05)
    monkeypatch.setattr("bluegrad.theory.simulation.VALUES", 1024 * 64)
    found = theory.simulate(SMALL, noise, steps=6000, repeats=64, seed=1).stationary(burn_in=300)
    assert abs(deviation(found, theory.suboptimality(SMALL, noise).total)) < 4.0


def test_blocks_are_the_rows_in_order():
    first, second = (Filtered(theory.damped_root(0.1), 500, 4, 0.1, np.random.default_rng(0)) for _ in range(2))
    first._rows = second._rows = 170
    whole = np.concatenate(list(first.blocks(500)))
    np.testing.assert_array_equal(whole, np.concatenate([second.block(rows) for rows in (170, 170, 160)]))


def deviation(simulated, exact: float) -> float:
    return (simulated.mean - exact) / simulated.standard_error


@pytest.mark.parametrize(
    "noise",
    [theory.white(), theory.damped_root(0.05), theory.damped_difference(0.4), theory.optimal_noise(SMALL)],
    ids=lambda noise: noise.name,
)
def test_simulation_agrees_with_quadrature_within_four_standard_errors(noise):
    found = theory.simulate(SMALL, noise, steps=6000, repeats=64, seed=1).stationary(burn_in=300)
    assert abs(deviation(found, theory.suboptimality(SMALL, noise).total)) < 4.0
    assert found.standard_error < 0.01 * found.mean


def test_a_wrong_coefficient_fails():
    right = theory.damped_root(0.05)
    wrong = right.coefficients(400)
    wrong[1] = -0.45  # for -0.475
    found = theory.simulate(SMALL, right, steps=6000, repeats=64, seed=1).stationary(burn_in=300)
    assert abs(deviation(found, theory.suboptimality(SMALL, theory.moving(wrong)).total)) > 8.0


def test_mean_estimation_at_the_reference_point():
    problem = theory.Problem([1.0], 0.1)
    found = theory.simulate(problem, theory.optimal_noise(problem), steps=20000, repeats=32, seed=4).stationary(500)
    assert abs(deviation(found, 0.0105392 / 2)) < 4.0


def test_sampled_regression_against_its_second_moment():
    # one direction, independent noise: v = E (1 - eta x^2)^2 v + eta^2 (s_dp^2 + s_sgd^2 l)
    eta, value, spread = 0.1, 0.8, 0.5
    problem = theory.Problem([value], eta, sgd_noise=spread)
    v = eta**2 * (0.5 + spread**2 * value) / (2 * eta * value - 3 * (eta * value) ** 2)
    found = theory.simulate(problem, theory.white(), steps=8000, repeats=64, gradients="sampled", seed=2).stationary(
        200
    )
    assert abs(deviation(found, 0.5 * value * v)) < 4.0
    # the linear part alone is less, by more than the error of the simulation
    assert deviation(found, theory.suboptimality(problem, theory.white()).total) > 4.0


def test_sampled_regression_meets_the_theory_as_the_rate_falls():
    problem = theory.Problem([1.0, 0.5], 0.01)
    noise = theory.damped_root(0.005)
    found = theory.simulate(problem, noise, steps=12000, repeats=32, gradients="sampled", seed=3).stationary(2000)
    assert found.mean == pytest.approx(theory.suboptimality(problem, noise).total, rel=0.06)


def test_start_decays_as_gradient_descent_does():
    problem = theory.Problem([1.0, 0.25], 0.2, clip_norm=1e-9)
    run = theory.simulate(problem, theory.white(), steps=30, repeats=2, start=[3.0, -2.0])
    t = run.times
    expected = 0.5 * (9 * (1 - 0.2) ** (2 * t) + 0.25 * 4 * (1 - 0.05) ** (2 * t))
    np.testing.assert_allclose(run.errors[:, 0], expected, rtol=1e-6)


def test_schedule_takes_the_place_of_the_rate():
    problem = theory.Problem([1.0, 0.25], 0.2, sgd_noise=1.0)
    noise = theory.damped_root(0.1)
    constant = theory.simulate(problem, noise, steps=50, seed=6)
    same = theory.simulate(problem, noise, steps=50, seed=6, learning_rates=[0.2] * 50)
    np.testing.assert_array_equal(constant.errors, same.errors)
    stopped = theory.simulate(problem, noise, steps=50, seed=6, learning_rates=[0.2] * 25 + [0.0] * 25)
    np.testing.assert_array_equal(stopped.errors[:25], constant.errors[:25])
    assert (stopped.errors[25:] == stopped.errors[24]).all()


def test_clipping_bounds_the_drift_and_is_counted():
    problem = theory.Problem([1.0], 0.1, clip_norm=0.01, rho=1e6)
    run = theory.simulate(problem, theory.white(), steps=20, repeats=3, clip=True, start=[5.0])
    assert run.clipped == 1.0
    np.testing.assert_allclose(np.sqrt(2 * run.errors[-1]), 5.0 - 20 * 0.1 * 0.01, atol=1e-5)
    loose = theory.Problem([1.0, 0.5], 0.1, clip_norm=1e3, rho=1e9)
    clipped, free = (
        theory.simulate(loose, theory.white(), steps=50, gradients="sampled", clip=clip, start=[1.0, 1.0], seed=8)
        for clip in (True, False)
    )
    assert clipped.clipped == 0.0
    np.testing.assert_array_equal(clipped.errors, free.errors)


def test_diverging_noise_grows_with_the_horizon():
    problem = theory.Problem([1.0], 0.1)
    noise = theory.damped_difference(0.0)
    ends = [theory.simulate(problem, noise, steps=n, repeats=64).errors[-50:].mean() for n in (100, 1600)]
    assert ends[1] > 8 * ends[0]


def test_the_seed_is_all_that_matters():
    first, again, other = (theory.simulate(SMALL, theory.white(), steps=20, seed=seed).errors for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_intervals_cover_as_often_as_they_say():
    runs = theory.simulate(SMALL, theory.white(), steps=600, repeats=400, seed=9)
    exact = theory.suboptimality(SMALL, theory.white()).total
    covered = 0
    for start in range(0, 400, 8):
        part = theory.Simulation(runs.times, runs.errors[:, start : start + 8], 0.0).stationary(200)
        low, high = part.interval(0.8)
        covered += low < exact < high
    assert 30 <= covered <= 48  # 40 expected of 50


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 0}, "steps=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"gradients": "true"}, "gradients='true'.*expected, sampled"),
        ({"start": [1.0]}, r"len\(start\)=1.*3 eigenvalues"),
        ({"start": [1.0, math.nan, 0.0]}, r"start\[1\]=nan"),
        ({"learning_rates": [0.1]}, r"len\(learning_rates\)=1"),
        ({"learning_rates": [0.1, 2.0, 0.1, 0.1]}, r"learning_rates\[1\]=2.0.*2 / L"),
    ],
)
def test_bad_input_is_refused_with_the_reason(options, match):
    with pytest.raises(ValueError, match=match):
        theory.simulate(SMALL, theory.white(), **{"steps": 4, **options})


def test_estimates_refuse_what_they_have_no_data_for():
    run = theory.simulate(SMALL, theory.white(), steps=10, repeats=1)
    with pytest.raises(ValueError, match="leaves no step"):
        run.stationary(10)
    with pytest.raises(ValueError, match="at least 2"):
        run.stationary(2)
    with pytest.raises(ValueError, match=r"confidence=1\.0"):
        theory.simulate(SMALL, theory.white(), steps=10).stationary(2).interval(1.0)


def test_noise_too_long_to_hold_is_refused():
    problem = theory.Problem(np.linspace(1e-4, 1.0, 1024), 0.1)
    with pytest.raises(ValueError, match=r"remembers .* steps of 65536 columns"):
        theory.simulate(problem, theory.damped_root(1e-5), steps=100_000, repeats=64, gradients="sampled")
