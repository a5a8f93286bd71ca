"""Optimisers under sampled batches: the surrogate against dense sums, and what the searches find."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from scipy.optimize import minimize

import bluegrad as bg
from bluegrad import optimize
from bluegrad.accounting import estimate_multiplier
from bluegrad.optimize._amplified import Surrogate

N, EPOCHS, PRIVACY = 60, 6, (2.0, 1e-4)
WORK, LAW = bg.PrefixSum(N), bg.BallsInBins(N, EPOCHS)
FAMILIES = {
    "lambda_cgd": lambda: optimize.lambda_cgd(WORK, LAW, privacy=PRIVACY),
    "nu_dp_ftrl": lambda: optimize.nu_dp_ftrl(WORK, LAW, privacy=PRIVACY),
    "one buffer": lambda: optimize.buffered_toeplitz(WORK, LAW, 1, privacy=PRIVACY),
    "inverse, 3 bands": lambda: optimize.banded_inverse(WORK, LAW, 3, privacy=PRIVACY),
    "toeplitz, all bands": lambda: optimize.toeplitz(WORK, LAW, N, privacy=PRIVACY),
}


def noise(strategy):
    """Error at the model at the target, with the estimated multiplier."""
    return bg.rmse(strategy, WORK, LAW) * estimate_multiplier(strategy, LAW, epsilon=PRIVACY[0], delta=PRIVACY[1])


@lru_cache
def found(name):
    return FAMILIES[name]()


def dense_products(c, n, k):
    """<m_0, m_d> of the earliest bins, from the matrix."""
    matrix = np.array([[c[i - j] if 0 <= i - j < len(c) else 0.0 for j in range(n)] for i in range(n)])
    means = matrix.reshape(n, k, n // k).sum(axis=1)
    return means[:, 0] @ means


@pytest.mark.parametrize(("n", "k", "bands"), [(24, 4, 9), (30, 3, 30), (40, 1, 40), (12, 12, 5), (21, 3, 1)])
@pytest.mark.parametrize("divergence", [0.01, 0.5, 3.0, 60.0])
def test_surrogate_solves_its_equation_and_knows_its_gradient(n, k, bands, divergence):
    c = np.random.default_rng(n).random(bands)
    surrogate = Surrogate(bg.FixedEpochs(n, k), divergence)
    square, gradient = surrogate.squared(c)
    products, b = dense_products(c, n, k), n // k
    apart = np.abs(np.subtract.outer(np.arange(b), np.arange(b)))
    assert np.log(np.exp(products[apart] / square).mean()) == pytest.approx(divergence, rel=1e-9)
    step = 1e-6 * np.eye(bands)
    slope = [(surrogate.squared(c + e)[0] - surrogate.squared(c - e)[0]) / 2e-6 for e in step]
    assert gradient == pytest.approx(np.array(slope), rel=1e-5, abs=1e-6 * np.abs(slope).max())


def test_surrogate_runs_from_the_largest_bin_to_the_mean_of_all():
    c = 0.8 ** np.arange(N)
    products, b = dense_products(c, N, EPOCHS), N // EPOCHS
    shares = np.where(np.arange(b) == 0, 1.0, 2.0) * (b - np.arange(b)) / b**2
    quiet, loud = (Surrogate(bg.FixedEpochs(N, EPOCHS), r).squared(c)[0] * r for r in (1e4, 1e-4))
    assert quiet == pytest.approx(products.max(), rel=1e-3)
    assert loud == pytest.approx(shares @ products, rel=1e-3)
    assert loud < 0.7 * quiet


@pytest.mark.parametrize("name", FAMILIES)
def test_amplified_optimum_beats_the_one_without_amplification(name):
    fixed = bg.FixedEpochs(N, EPOCHS)
    unamplified = {
        "lambda_cgd": lambda: optimize.lambda_cgd(WORK, fixed),
        "nu_dp_ftrl": lambda: optimize.nu_dp_ftrl(WORK, fixed),
        "one buffer": lambda: optimize.buffered_toeplitz(WORK, fixed, 1),
        "inverse, 3 bands": lambda: optimize.banded_inverse(WORK, fixed, 3),
        "toeplitz, all bands": lambda: optimize.toeplitz(WORK, fixed, N),
    }[name]()
    record = found(name).optimization
    assert record.noise == pytest.approx(noise(found(name)), rel=1e-9)
    assert record.value == bg.rmse(found(name), WORK, LAW)
    assert record.noise < 0.99 * noise(unamplified)
    assert record.noise < noise(bg.identity(N))


def test_larger_families_are_no_worse():
    values = {name: found(name).optimization.noise for name in FAMILIES}
    assert values["one buffer"] < 1.003 * values["lambda_cgd"]  # a lambda-CGD strategy is one with one buffer
    assert values["toeplitz, all bands"] < 1.001 * min(values.values())


@pytest.mark.slow
def test_surrogate_leads_near_the_direct_optimum():
    """One buffer has two parameters: few enough to search the estimated noise itself."""

    def direct(x):
        decay, scale = 1.0 / (1.0 + np.exp(x[0])), np.exp(x[1])
        return noise(bg.buffered_toeplitz(N, [decay], [scale]))

    start = found("one buffer").describe()["parameters"]
    x = [np.log(1.0 / start["decays"][0] - 1.0), np.log(start["scales"][0])]
    best = minimize(direct, x, method="Nelder-Mead", options={"maxfev": 30}).fun
    assert found("one buffer").optimization.noise < 1.01 * best
    assert direct([x[0] + 1.0, x[1]]) > 1.02 * best  # a wrong optimum would show


def test_calibrated_noise_is_near_the_estimate():
    strategy = found("one buffer")
    mechanism = bg.calibrate(strategy, LAW, epsilon=PRIVACY[0], delta=PRIVACY[1])
    proved = mechanism.noise_multiplier * bg.rmse(strategy, WORK, LAW)
    assert strategy.optimization.noise == pytest.approx(proved, rel=0.03)


@pytest.mark.parametrize("family", [optimize.toeplitz, optimize.banded])
def test_cyclic_poisson_asks_for_the_best_single_columns(family):
    once, cyclic = family(WORK, bg.SinglePass(N), 4), family(WORK, bg.CyclicPoisson(N, 5, 0.3), 4)
    assert (once.dense() == cyclic.dense()).all()
    assert cyclic.optimization.value == bg.rmse(cyclic, WORK, bg.CyclicPoisson(N, 5, 0.3))
    with pytest.raises(ValueError, match=r"bands=6.*period=5"):
        family(WORK, bg.CyclicPoisson(N, 5, 0.3), 6)


@pytest.mark.parametrize("name", ["lambda_cgd", "nu_dp_ftrl", "buffered_toeplitz", "toeplitz", "banded_inverse"])
@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (None, "privacy=None.*needed.*BallsInBins"),
        (1.0, "must be a pair"),
        ((0.0, 1e-5), "epsilon=0.0"),
        ((1.0, 1.0), "delta=1.0"),
    ],
)
def test_a_missing_or_impossible_target_is_refused(name, privacy, message):
    size = () if name in ("lambda_cgd", "nu_dp_ftrl") else (2,)
    with pytest.raises(ValueError, match=message):
        getattr(optimize, name)(WORK, LAW, *size, privacy=privacy)


def test_pairs_without_an_optimiser_are_refused_by_name():
    for find in (lambda: optimize.banded(WORK, LAW, 4), lambda: optimize.dense(WORK, LAW)):
        with pytest.raises(bg.Unsupported, match="BallsInBins"):
            find()
    for find in (optimize.banded_inverse, optimize.buffered_toeplitz):
        with pytest.raises(bg.Unsupported, match="CyclicPoisson"):
            find(WORK, bg.CyclicPoisson(N, 5, 0.3), 3)
    with pytest.raises(bg.Unsupported, match="Poisson"):
        optimize.toeplitz(WORK, bg.Poisson(N, 0.1), 1)


def test_a_target_changes_nothing_where_the_multiplier_is_the_same_for_all():
    fixed = bg.FixedEpochs(N, EPOCHS)
    plain, aimed = optimize.lambda_cgd(WORK, fixed), optimize.lambda_cgd(WORK, fixed, privacy=PRIVACY)
    assert aimed.describe()["parameters"]["lam"] == pytest.approx(plain.describe()["parameters"]["lam"], abs=1e-3)
    expected = plain.optimization.value * bg.calibrate(plain, fixed, epsilon=2.0, delta=1e-4).noise_multiplier
    assert aimed.optimization.noise == pytest.approx(expected, rel=1e-4)
