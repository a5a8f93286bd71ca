"""Cyclic Poisson: reference values, its reduction to Poisson DP-SGD, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg
from oracles.general import General


def law(bands, batches=100):
    """n = 2000 steps, as many groups as bands, batches of 1 / 100 of the units."""
    return bg.CyclicPoisson(2000, bands, bands / batches)


VALUES = ((1, 8, 0.6433), (1, 1, 1.8428), (2, 8, 0.7339), (2, 1, 2.5120), (10, 8, 1.1297), (10, 1, 5.4269),
          (100, 8, 2.6843), (100, 1, 16.6839))  # fmt: skip


@pytest.mark.parametrize(("bands", "epsilon", "sigma"), VALUES)
def test_reference_values(bands, epsilon, sigma):
    strategy = bg.toeplitz(np.linspace(1.0, 0.1, bands), 2000)
    found = bg.epsilon(bg.Mechanism(strategy, law(bands), 1.0003 * sigma), delta=1e-5)
    assert 0.995 * epsilon < found <= epsilon
    if bands in (2, 100):  # 3 % less noise is another epsilon
        assert bg.epsilon(bg.Mechanism(strategy, law(bands), 0.97 * sigma), delta=1e-5) > epsilon


@pytest.mark.parametrize(("bands", "epsilon", "sigma"), [
    (100, 8, 2.6843), *(pytest.param(*case, marks=pytest.mark.slow) for case in VALUES[:6])
])  # fmt: skip
def test_calibration(bands, epsilon, sigma):
    strategy = bg.toeplitz(np.linspace(1.0, 0.1, bands), 2000)
    mechanism = bg.calibrate(strategy, law(bands), epsilon=epsilon, delta=1e-5)
    assert mechanism.noise_multiplier == pytest.approx(sigma, rel=2e-4)
    assert mechanism.sensitivity == pytest.approx(np.linalg.norm(np.linspace(1.0, 0.1, bands)), rel=1e-12)
    assert bg.epsilon(mechanism, delta=1e-5) <= epsilon


def test_it_is_poisson_over_the_rounds():
    for strategy in (bg.toeplitz([1, 0.5, 0.2], 30), General(bg.toeplitz([1, 0.5, 0.2], 30).dense())):
        cyclic = bg.epsilon(bg.Mechanism(strategy, bg.CyclicPoisson(30, 4, 0.2), 1.1), delta=1e-5)
        plain = bg.epsilon(bg.Mechanism(bg.identity(8), bg.Poisson(8, 0.2), 1.1), delta=1e-5)
        assert cyclic == plain and (cyclic.law, cyclic.method) == ("cyclic-poisson", "pld")


def test_at_rate_one_it_is_no_better_than_the_fixed_epochs():
    strategy = bg.toeplitz([1, -0.5], 20)
    sampled = bg.epsilon(bg.Mechanism(strategy, bg.CyclicPoisson(20, 4, 1.0), 2.0), delta=1e-5)
    # five rounds of the column norm: non-overlapping columns add up in squares
    fixed = bg.Mechanism(strategy, bg.FixedEpochs(20, 5), 2.0 / 5**0.5)
    assert fixed.sensitivity == pytest.approx((5 * 1.25) ** 0.5)
    exact = bg.epsilon(fixed, delta=1e-5)
    assert exact <= sampled <= 1.01 * exact


def test_a_prefix_has_the_rounds_that_were_due():
    mechanism = bg.Mechanism(bg.toeplitz([1, 0.5], 20), bg.CyclicPoisson(20, 4, 0.3), 1.0)
    assert [bg.CyclicPoisson(20, 4, 0.3).prefix(t).rounds for t in (1, 3, 4, 5, 20)] == [1, 1, 1, 2, 5]
    spent = [bg.epsilon(mechanism.after(t), delta=1e-5) for t in (4, 5, 20)]
    assert spent == sorted(spent) and spent[-1] == bg.epsilon(mechanism, delta=1e-5)
    assert mechanism.after(5).noise_scale(1.0) == pytest.approx(mechanism.noise_scale(1.0), rel=1e-12)


def test_more_bands_than_groups_are_refused_by_name():
    with pytest.raises(bg.Unsupported, match=r"toeplitz.*CyclicPoisson.*3 bands are more than period=2"):
        bg.calibrate(bg.toeplitz([1, 0.5, 0.2], 20), bg.CyclicPoisson(20, 2, 0.1), epsilon=1.0, delta=1e-5)
    with pytest.raises(bg.Unsupported, match=r"lambda_cgd.*20 bands.*period=5"):
        bg.Mechanism(bg.lambda_cgd(20, 0.5), bg.CyclicPoisson(20, 5, 0.1), 1.0)
    dense = bg.toeplitz([1, 0, 0.2], 9).dense()
    with pytest.raises(bg.Unsupported, match=r"general.*3 bands"):
        bg.sensitivity(General(dense), bg.CyclicPoisson(9, 2, 0.1))
    assert bg.sensitivity(General(dense), bg.CyclicPoisson(9, 3, 0.1)) == pytest.approx(1.04**0.5)
    with pytest.raises(bg.Unsupported, match="square lower-triangular"):
        bg.sensitivity(General(dense.T), bg.CyclicPoisson(9, 3, 0.1))


@pytest.mark.parametrize(("arguments", "message"), [
    ((20, 0, 0.1), "period=0"), ((20, 21, 0.1), "period=21: is more than steps=20"), ((20, 2, 0.0), "rate=0.0"),
    ((20, 2, 1.5), "rate=1.5"), ((0, 1, 0.1), "steps=0"),
])  # fmt: skip
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        bg.CyclicPoisson(*arguments)
