"""The convex program: reference values, an upper bound of quadratics, alternation, grids."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from bluegrad import theory

# rho = 1/2 makes s_dp^2 = gamma^2; E|theta|^2 a coordinate is 2 / L times the bound
MILD = theory.ConvexClass(0.5, 1.0, learning_rate=0.5, rho=0.5)
HARD = theory.ConvexClass(0.1, 1.0, learning_rate=0.5, rho=0.5)


def worst_quadratic(losses, noise):
    """Largest error of a quadratic with one eigenvalue, every direction weighted by L as the bound does."""
    values = np.linspace(losses.strong_convexity, losses.smoothness, 200)
    gain = noise.gain(losses.learning_rate * values).max()
    level = losses.clip_norm**2 * noise.gamma**2 / (2 * losses.rho)
    return losses.smoothness / 2 * losses.dimension * losses.learning_rate**2 * level * gain


@pytest.mark.parametrize(
    ("losses", "noise", "quadratic", "sector", "lagged"),
    [
        (MILD, theory.white(), 0.57143, 0.74074, 0.72790),
        (HARD, theory.white(), 2.56411, 6.41113, 5.67599),
        (HARD, theory.damped_root(0.05), 0.67968, 2.62372, 2.58988),
    ],
)
def test_reference_values(losses, noise, quadratic, sector, lagged):
    assert 2 * worst_quadratic(losses, noise) == pytest.approx(quadratic, abs=1e-5)
    assert 2 * theory.convex_bound(losses, noise, lags=0).value == pytest.approx(sector, abs=2e-5)
    assert 2 * theory.convex_bound(losses, noise, lags=30).value == pytest.approx(lagged, abs=5e-5)


def test_a_uniform_grid_gives_the_same():
    graded = theory.convex_bound(HARD, theory.damped_root(0.05), lags=8)
    uniform = theory.convex_bound(HARD, theory.damped_root(0.05), lags=8, points=400)
    assert uniform.value == pytest.approx(graded.value, rel=1e-4)


def test_no_quadratic_is_above_the_bound_over_random_classes():
    rng = np.random.default_rng(3)
    for _ in range(6):
        smooth = rng.uniform(0.5, 3)
        losses = theory.ConvexClass(smooth * rng.uniform(0.05, 0.9), smooth, rng.uniform(0.1, 1) / smooth, dimension=3)
        noise = theory.damped_root(rng.uniform(0.01, 0.5))
        bound = theory.convex_bound(losses, noise, lags=5)
        assert bound.value >= worst_quadratic(losses, noise)
        w = np.linspace(0.01, math.pi, 50)
        for value in (losses.strong_convexity, losses.smoothness):
            # M has a positive real part, so the bound holds for quadratics at every frequency alone
            exact = losses.learning_rate**2 / np.abs(1 - losses.learning_rate * value - np.exp(1j * w)) ** 2
            assert (bound.cost(w) >= exact * (1 - 1e-9)).all()


def test_multiplier_is_valid_for_gradients_of_a_convex_loss():
    """The inequality behind the bound on a simulated trajectory of a loss that is no quadratic."""
    mu, smooth, eta, steps = 0.2, 1.0, 0.5, 200_000
    rng = np.random.default_rng(0)
    z = rng.standard_normal(steps)
    theta, square = 0.0, 0.0
    for noise in z:
        # slope L outside of [-1, 1], mu inside
        gradient = mu * theta + (smooth - mu) * (abs(theta) > 1.0) * (theta - math.copysign(1.0, theta))
        theta -= eta * (gradient + noise)
        square += theta * theta
    losses = theory.ConvexClass(mu, smooth, eta, rho=0.5)
    assert square / steps < 2 * theory.convex_bound(losses, theory.white(), lags=20).value


def test_alternation_beats_every_named_noise_and_its_gain_grows_with_the_condition():
    gains = []
    for mu in (0.5, 0.1, 0.02):
        losses = theory.ConvexClass(mu, 1.0, learning_rate=0.5)
        best = theory.convex_optimal(losses, lags=4)
        white = theory.convex_bound(losses, theory.white(), lags=4).value
        root = theory.convex_bound(losses, theory.damped_root(0.5 * mu), lags=4).value
        assert best.value <= min(white, root) * (1 + 1e-6)
        assert best.rounds >= 1
        gains.append(white / best.value)
        n = best.noise.coefficients(50)
        assert n[0] == 1.0 and (n[1:10] < 0).all()
    assert gains[0] < gains[1] < gains[2]


def test_sgd_noise_adds_to_the_bound():
    with_noise = theory.ConvexClass(0.5, 1.0, learning_rate=0.5, rho=0.5, sgd_noise=1.0)
    alone, both = (theory.convex_bound(losses, theory.white(), lags=0).value for losses in (MILD, with_noise))
    assert both == pytest.approx(2 * alone, rel=1e-6)  # white private noise of the same size


def test_divergent_noise_has_an_infinite_bound():
    assert theory.convex_bound(MILD, theory.damped_root(0.0)).value == math.inf


def test_without_cvxpy_the_reason_and_the_fix_are_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ImportError, match=r"bluegrad\[theory\]"):
        theory.convex_bound(MILD, theory.white())


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: theory.ConvexClass(0.0, 1.0, 0.5), "strong_convexity=0.0"),
        (lambda: theory.ConvexClass(1.0, 1.0, 0.5), "smoothness=1.0"),
        (lambda: theory.ConvexClass(0.5, 1.0, 2.0), "learning_rate=2.0.*2 / L"),
        (lambda: theory.ConvexClass(0.5, 1.0, math.nan), "learning_rate=nan"),
        (lambda: theory.ConvexClass(0.5, 1.0, 0.5, dimension=0), "dimension=0"),
        (lambda: theory.convex_bound(MILD, theory.white(), lags=-1), "lags=-1"),
        (lambda: theory.convex_bound(MILD, theory.white(), points=2), "points=2"),
        (lambda: theory.convex_bound(None, theory.white()), "must be a theory.ConvexClass"),
        (lambda: theory.convex_optimal(MILD, rounds=0), "rounds=0"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()
