"""Transfer functions: frequency domain against time domain, and divergence recognised."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

import bluegrad as bg
from bluegrad import theory

W = np.linspace(0.05, math.pi - 0.05, 97)
NOISES = {
    "white": theory.white(),
    "root": theory.damped_root(0.05),
    "difference": theory.damped_difference(0.2),
    "moving": theory.moving([1.0, -0.5, 0.2, -0.1]),
    "autoregressive": theory.transfer(bg.toeplitz([1.0, 0.5, 0.25], steps=10)),
    "blt": theory.transfer(bg.buffered_toeplitz(50, [0.9, 0.5], [0.2, 0.3])),
    "negative base": theory.factored([0.7, -0.6], [0.5, 0.3]),
    "shaped": theory.optimal_noise(theory.Problem([1.9, 0.4, 0.2], learning_rate=0.9)),
}
each_noise = pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)


def series_power(coefficients, w):
    return np.abs(np.exp(1j * np.outer(w, np.arange(len(coefficients)))) @ coefficients) ** 2


@each_noise
def test_power_is_that_of_the_coefficients(noise):
    np.testing.assert_allclose(noise.power(W), series_power(noise.coefficients(2000), W), rtol=1e-4)


@each_noise
def test_gamma_in_the_frequency_and_in_the_time_domain(noise):
    n = noise.coefficients(4000)
    c = np.zeros(4000)  # 1 / N by plain forward substitution
    c[0] = 1.0 / n[0]
    for t in range(1, 4000):
        c[t] = -(n[1 : t + 1] @ c[t - 1 :: -1]) / n[0]
    assert noise.gamma == pytest.approx(np.linalg.norm(c), rel=1e-9)
    assert noise.gamma**2 == pytest.approx(noise.mean(lambda w: 1.0 / noise.power(w), 1.0), rel=1e-9)


@each_noise
@pytest.mark.parametrize("rate", [0.03, 0.5, 1.0, 1.7])
def test_gain_is_the_variance_of_the_filtered_noise(noise, rate):
    n = noise.coefficients(4000)
    y = np.zeros(4000)
    y[0] = n[0]
    for t in range(1, 4000):
        y[t] = (1.0 - rate) * y[t - 1] + n[t]
    assert noise.gain(np.array([rate]))[0] == pytest.approx(y @ y, rel=1e-6)


def test_gamma_of_the_damped_root_is_an_elliptic_integral():
    for nu in (0.5, 0.1, 1e-3, 1e-8):
        expected = 2 / mpmath.pi * mpmath.ellipk((1 - mpmath.mpf(nu)) ** 2)
        assert theory.damped_root(nu).gamma ** 2 == pytest.approx(float(expected), rel=1e-9)
    assert theory.damped_root(0.1).gamma ** 2 == pytest.approx(1.4518426733757877, rel=1e-14)


@pytest.mark.parametrize(
    "noise",
    [
        theory.damped_difference(0.0),
        theory.damped_root(0.0),
        theory.moving([1.0, -1.0]),
        theory.moving([1.0, 0.0, -1.0]),
        theory.moving([1.0, -2.5, 1.0]),
        theory.moving([0.5, 1.0]),
        theory.factored([-1.0], [0.5]),
        theory.factored([1.0, 1.0], [0.3, 0.2]),
        theory.transfer(bg.square_root(bg.PrefixSum(64))),
        theory.transfer(bg.nu_dp_ftrl(64, nu=0.0)),
        theory.transfer(bg.banded_inverse_toeplitz([1.0, -1.0], 64)),
    ],
)
def test_divergence_is_infinity_and_no_large_number(noise):
    problem = theory.Problem([1.0, 0.5], learning_rate=0.1, sgd_noise=1.0)
    assert noise.gamma == math.inf
    error = theory.suboptimality(problem, noise)
    assert error.private == math.inf and error.total == math.inf and math.isfinite(error.sgd)


def test_zeros_on_the_circle_are_found_among_others():
    rng = np.random.default_rng(0)
    for _ in range(200):
        inside = np.poly(rng.uniform(-0.95, 0.95, rng.integers(1, 12)))
        angle = rng.uniform(0, math.pi)
        for circle in ([1.0, -1.0], [1.0, 1.0], [1.0, -2 * math.cos(angle), 1.0]):
            assert theory.moving(np.convolve(inside, circle)).gamma == math.inf
        assert theory.moving(inside).finite


def test_just_inside_of_divergence_is_finite():
    assert theory.factored([1.0], [0.49]).gamma < 6
    assert theory.moving([1.0, -1.0 + 1e-6]).gamma == pytest.approx((2e-6) ** -0.5, rel=1e-5)
    truncated = bg.banded_inverse_square_root(bg.PrefixSum(1000), bands=50)
    assert 1.5 < theory.transfer(truncated).gamma < 2.5


def test_noise_of_an_unstable_recurrence_diverges():
    unstable = theory.transfer(bg.toeplitz([1.0, 1.0], steps=10))
    assert unstable.finite  # its sensitivity is that of [1, 1]
    assert theory.suboptimality(theory.Problem([1.0], 0.1), unstable).private == math.inf


@pytest.mark.parametrize(
    "strategy",
    [
        bg.identity(40),
        bg.lambda_cgd(40, lam=0.8),
        bg.nu_dp_ftrl(40, nu=0.1),
        bg.square_root(bg.PrefixSum(40)),
        bg.square_root(bg.Sgd(40, momentum=0.9, weight_decay=0.01)),
        bg.banded_square_root(bg.PrefixSum(40), bands=4),
        bg.banded_inverse_square_root(bg.PrefixSum(40), bands=4),
        bg.buffered_toeplitz(40, [0.9, 0.3], [0.2, 0.1]),
    ],
    ids=repr,
)
def test_transfer_continues_the_strategy(strategy):
    n = np.zeros(40)
    own = strategy.noise_coefficients()
    n[: len(own)] = own
    np.testing.assert_allclose(theory.transfer(strategy).coefficients(40), n, atol=1e-12)


def test_a_strategy_from_the_noise():
    noise = theory.damped_root(0.1)
    np.testing.assert_allclose(noise.strategy(30).dense(), bg.nu_dp_ftrl(30, nu=0.1).dense(), atol=1e-12)
    assert len(noise.strategy(30, bands=4).noise_coefficients()) == 4


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: theory.damped_root(1.0), r"nu=1.0.*\[0, 1\)"),
        (lambda: theory.damped_difference(-0.1), "nu=-0.1"),
        (lambda: theory.damped_root(math.nan), "nu=nan.*finite"),
        (lambda: theory.moving([0.0, 1.0]), r"coefficients\[0\].*not be zero"),
        (lambda: theory.moving([1.0, math.nan]), r"coefficients\[1\]=nan"),
        (lambda: theory.factored([1.1], [0.5]), r"bases\[0\]=1.1"),
        (lambda: theory.factored([0.5], [0.5, 1.0]), "exponents"),
        (lambda: theory.white().gain(np.array([2.0])), r"rates\[0\]=2.0.*2/L"),
        (lambda: theory.white().coefficients(0), "length=0"),
        (lambda: theory.white().coefficients(1 << 21), "at most 1048576"),
        (lambda: theory.white().strategy(5, bands=6), "bands=6"),
        (lambda: theory.transfer(bg.tree_aggregation(8)), "isn't Toeplitz"),
        (lambda: theory.transfer(theory.damped_root(0.1).strategy(20)), "how they continue"),
        (lambda: theory.transfer([1.0]), "must be a bluegrad strategy"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, match):
    with pytest.raises(ValueError, match=match):
        call()
