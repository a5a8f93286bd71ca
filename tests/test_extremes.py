"""Numbers at the edge of floating point: an error, or the right answer, never a wrong one or a crash."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bluegrad as bg
from bluegrad import _patterns
from bluegrad.accounting import _moments, _weights, balls_in_bins
from bluegrad.accounting._bins import Bins
from bluegrad.accounting._excess import Proposal
from bluegrad.optimize.dense import _triangular

MIXED = np.array([[1, 0.5], [1, 0.3], [2, -0.5], [1, 0], [1, -0.4], [1, 0]])
MAKERS = {
    "toeplitz": lambda s: bg.toeplitz([s, 0.5 * s, -0.2 * s], 6),
    "non-negative": lambda s: bg.toeplitz([s, 0.5 * s, 0.2 * s], 6),
    "rising": lambda s: bg.toeplitz([s, 1.5 * s, 0.2 * s], 6),
    "inverse": lambda s: bg.banded_inverse_toeplitz([1 / s, -0.5 / s], 6),
    "banded": lambda s: bg.banded(s * MIXED),
    "dense": lambda s: bg.dense(s * (np.tri(6) - 0.3 * np.eye(6, k=-2))),
    "stamped": lambda s: bg.stamped(bg.toeplitz([s, -0.5 * s, 0.2 * s], 3), 2),
}
LAWS = [bg.SinglePass(6), bg.FixedEpochs(6, 3), bg.FixedEpochs(6, 6), bg.MinSeparation(6, 2, 3),
        bg.MinSeparation(6, 1, 2), bg.BallsInBins(6, 3), bg.CyclicPoisson(6, 6, 0.5)]  # fmt: skip


@pytest.mark.parametrize("power", [-300, -200, -160, -158, -154, -40, -25, 25, 40, 150, 154, 160, 300])
@pytest.mark.parametrize("name", MAKERS)
def test_a_scaled_strategy_has_the_scaled_sensitivity_or_none(name, power):
    """Squares of small entries underflow: noise scaled by what they add up to would be too small."""
    scale = float(f"1e{power}")
    answers = 0
    for law in LAWS:
        try:
            expected = bg.sensitivity(MAKERS[name](1.0), law)
        except bg.Unsupported:
            continue
        try:
            found = bg.sensitivity(MAKERS[name](scale), law)
        except ValueError as error:
            assert abs(power) > 30 and "out of range" in str(error)
            continue
        assert found == pytest.approx(scale * expected, rel=1e-9)
        answers += 1
    assert answers or abs(power) > 30


@pytest.mark.parametrize("power", [-200, -160, 160])
@pytest.mark.parametrize("name", MAKERS)
def test_columns_of_no_usable_norm_are_not_normalized(name, power):
    with pytest.raises(ValueError, match=r"column norm=.*out of range.*scale C"):
        bg.column_normalized(MAKERS[name](float(f"1e{power}")))


def test_a_bound_is_not_called_exact(monkeypatch):
    """Where participations aren't counted, for time, what is found is a bound."""
    strategy, law = bg.banded([[1.0], [3.0], [2.0], [3.0], [1.0], [1.0]]), bg.MinSeparation(6, 2, 2)
    exact = bg.certify(strategy, law)
    assert exact.exact and exact.value == pytest.approx(18**0.5)
    monkeypatch.setattr(_patterns, "_COUNTED", 0)
    bound = bg.certify(strategy, law)
    assert bound.value > exact.value and not bound.exact


@pytest.mark.parametrize("method", ["auto", "monte_carlo"])
@pytest.mark.parametrize(("multiplier", "epsilon"), [(7.5, 3.0), (3.0, 8.0), (0.5, 200.0), (1.0, 40.0), (100.0, 0.7)])
def test_a_delta_too_small_to_sample_is_the_deterministic_one(multiplier, epsilon, method):
    for strategy, law in ((bg.identity(3), bg.BallsInBins(3, 1)), (bg.lambda_cgd(40, 0.5), bg.BallsInBins(40, 4))):
        found = bg.delta(bg.Mechanism(strategy, law, multiplier), epsilon=epsilon, method=method)
        assert 0.0 <= found <= 1e-30


@pytest.mark.parametrize(("multiplier", "epsilon"), [(8.9, 0.05), (4.0, 1.0), (1.1, 1.0), (0.6, 20.0)])
@pytest.mark.parametrize("largest", [1.0, 20.0])
def test_one_bin_far_above_the_others(multiplier, epsilon, largest):
    """Proposals made for the others have weights beyond floating point: the bound is loose then, and still there."""
    m = np.sqrt(largest) * np.array([[1.0, 0.0, 0.0], [0.01, 0.02, 0.0], [0.0, 0.01, 0.03]])
    law = balls_in_bins.BallsInBinsGaussian(Bins(m @ m.T), multiplier, "monte_carlo", samples=20_000)
    # the first bin is joined with probability 1/3, and the others hardly show
    alone = _moments.gaussian.Gaussian(multiplier / largest**0.5).delta(np.log1p(3.0 * np.expm1(epsilon))) / 3.0
    assert law.delta(epsilon) >= 0.9 * alone


@pytest.mark.parametrize("square", [50.0, 150.0, 250.0, 290.0])
@pytest.mark.parametrize("first", [0.01, 1.0])
def test_weights_of_bins_of_very_different_size(square, first):
    """The larger bin's factor e^(-S/2) isn't a float32; samples of the law itself still find the truth."""
    law = Bins(np.diag([first, 1.01 - first]))
    weights = _weights.draw_remove(law, square**0.5, 0.4 * square, Proposal((1.0,), (1.0,)), 40_000, [3])
    # likelihood ratio of the larger bin alone, joined with probability 1/2; the smaller one's is near 1
    truth = 0.5 * _moments.gaussian.Gaussian(square**-0.5).delta(0.4 * square + np.log(2.0))
    assert weights.mean == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize("power", [-25, -20, -10, 10, 20, 25])
@pytest.mark.parametrize("name", MAKERS)
def test_noise_of_a_scaled_strategy_is_the_same_noise_or_none(name, power):
    """float32 ends at 1e-38: raw noise below it would be zero, and nothing that follows from it noise."""
    scale, key = float(f"1e{power}"), bg.NoiseKey.from_hex("0123456789abcdef" * 2)

    def noise(size, clip_norm):
        mechanism = bg.Mechanism(MAKERS[name](size), bg.SinglePass(6), 1.0)
        stream = bg.NoiseStream(mechanism, [torch.zeros(50)], clip_norm=clip_norm, key=key)
        return np.array([stream.next()[0].double().numpy() for _ in range(6)])

    plain = noise(1.0, 1.0)
    assert noise(scale, 1.0) == pytest.approx(plain, abs=1e-5 * np.abs(plain).max())
    if abs(power) < 15:
        assert noise(scale, scale) == pytest.approx(scale * plain, abs=1e-5 * scale * np.abs(plain).max())
    else:
        with pytest.raises(ValueError, match=r"noise scale.*float32"):
            noise(scale, scale)


@pytest.mark.parametrize("constraint", ["orthogonal", "nonnegative", "nonnegative_pairs"])
@pytest.mark.parametrize(("steps", "epochs"), [(12, 12), (8, 8), (6, 2), (1, 1)])
def test_rates_of_all_but_zero_give_no_strategy_worse_than_independent_noise(constraint, steps, epochs):
    """The search may get nowhere; noise of one's own size at every step is always at hand."""
    rates = np.where(np.arange(steps) % 3 == 1, 1e-12, np.linspace(0.1, 1.0, steps))
    work, law = bg.Sgd(steps, momentum=0.9, learning_rates=rates), bg.FixedEpochs(steps, epochs)
    found = bg.optimize.dense(work, law, constraint=constraint)
    assert bg.sensitivity(found, law) <= 1.0
    energy = (work.dense() ** 2).sum(axis=0)  # of a step's noise in all models; best sizes by Lagrange
    diagonal = np.sqrt((np.sqrt(energy).reshape(epochs, -1).sum(axis=0) ** 2).sum() / steps)
    assert found.optimization.value <= diagonal * (1 + 1e-9)


def test_a_gram_matrix_singular_to_rounding_has_a_triangle():
    x = np.ones((3, 3)) / 3.0
    c = _triangular(x)
    assert not np.triu(c, 1).any() and (np.diag(c) > 0.0).all()
    assert c.T @ c == pytest.approx(x, abs=1e-6)
    assert np.diag(c.T @ c) == pytest.approx(np.diag(x), rel=1e-12)
