"""Random allocation: integration oracles, published values, Monte Carlo, laws, and where it applies."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg
from bluegrad.accounting import _mixtures, random_allocation
from bluegrad.accounting.random_allocation import RandomAllocation
from oracles import bins as oracle
from oracles.general import General


def mechanism(bins, epochs, sigma):
    n = bins * epochs
    return bg.Mechanism(bg.identity(n), bg.BallsInBins(n, epochs), sigma)


class TestAgainstIntegration:
    CASES = ((1.0, 1.0), (0.5, 4.0), (2.0, 0.1), (0.3, 9.0), (4.0, 0.05))

    def test_the_integrations_agree_with_plain_samples(self):
        for epsilon in (0.2, 1.0):
            (up, up_error), (down, down_error) = oracle.plain_deltas(np.eye(3), 1.0, epsilon, 400_000, seed=1)
            found = oracle.three_bin_deltas(1.0, epsilon)
            assert abs(found[0] - up) < 5 * up_error and abs(found[1] - down) < 5 * down_error
            assert abs(1.02 * found[0] - up) > up_error

    @pytest.mark.parametrize(("sigma", "epsilon"), CASES)
    @pytest.mark.parametrize("count", [2, 3])
    def test_never_below_and_hardly_above(self, count, sigma, epsilon):
        if count == 2:
            up, down = oracle.two_bin_deltas(np.eye(2), sigma, epsilon)
        else:
            up, down = oracle.three_bin_deltas(sigma**-2, epsilon)
        found = bg.delta(mechanism(count, 1, sigma), epsilon=epsilon)
        truth = max(up, down)
        assert (1 - 1e-5) * truth <= found <= 1.005 * truth  # the integration's own error is some 1e-6
        assert (found.method, found.failure_probability) == ("pld", 0.0)
        quieter = oracle.three_bin_deltas((0.99 * sigma) ** -2, epsilon) if count == 3 else oracle.two_bin_deltas(
            np.eye(2), 0.99 * sigma, epsilon
        )  # fmt: skip
        assert max(quieter) > found  # 1 % in the noise is told apart

    @pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (0.6, 1.5)])
    def test_each_direction(self, sigma, epsilon):
        law = _mixtures.sum_of_log_normals(3, sigma**-2, 0.02)
        ratio = law.values / 3
        up, down = oracle.three_bin_deltas(sigma**-2, epsilon)
        remove = law.masses @ np.maximum(ratio - np.exp(epsilon), 0.0)
        add = law.masses @ np.maximum(1.0 - np.exp(epsilon) * ratio, 0.0) + law.zero
        assert (1 - 1e-6) * up <= remove <= 1.001 * up and (1 - 1e-6) * down <= add <= 1.001 * down
        assert up != pytest.approx(down, rel=0.05)

    def test_calibration_is_tight(self):
        for epsilon, delta in ((1.0, 1e-5), (0.1, 1e-3), (4.0, 1e-8)):
            law = bg.BallsInBins(3, 1)
            sigma = bg.calibrate(bg.identity(3), law, epsilon=epsilon, delta=delta).noise_multiplier
            assert max(oracle.three_bin_deltas(sigma**-2, epsilon)) <= delta
            assert max(oracle.three_bin_deltas((0.997 * sigma) ** -2, epsilon)) > delta


class TestTheGrid:
    @pytest.mark.parametrize(("count", "square"), [(1, 1.0), (2, 4.0), (7, 0.3), (100, 1.0), (37, 9.0)])
    def test_mass_mean_and_a_variance_hardly_too_large(self, count, square):
        law = _mixtures.sum_of_log_normals(count, square, 0.04)
        ratio = law.values / count
        assert law.masses.sum() + law.zero == pytest.approx(1.0, abs=1e-11)
        assert law.masses @ ratio == pytest.approx(1.0, abs=1e-11)
        variance = np.expm1(square) / count
        if square < 2:  # beyond that the variance lies in the tail that is cut
            assert variance < law.masses @ (ratio - 1) ** 2 < 1.01 * variance
        assert 0.0 <= law.lost / count < 1e-21 and (law.masses >= 0.0).all()

    def test_sums_of_two_masses_by_hand(self):
        """e^0 + e^0 and e^0 + e^(-0.5) on a grid of width 0.5: the mean is kept, neighbours share the mass."""
        law = _mixtures.GridLaw(0.5, -1, np.array([0.25, 0.5]), 0.25, 0.125)
        total = law + law
        v = total.values
        assert total.zero == 0.0625 and total.lost == 0.25
        assert total.masses.sum() + total.zero == pytest.approx(1.0, rel=1e-15)
        assert total.masses @ v == pytest.approx(2 * (0.5 + 0.25 * np.exp(-0.5)), rel=1e-14)
        top = (2.0 - np.exp(0.5)) / (np.exp(1.0) - np.exp(0.5))  # 2 lies between the points 1 and 2
        assert total.masses[total.low * -1 + 2] == pytest.approx(0.25 * top, rel=1e-14)

    def test_finer_is_smaller_and_trimming_never_is(self):
        pair = RandomAllocation(20, 1.0)
        found = [pair.delta(1.0, 0.8, width) for width in (0.3, 0.1, 0.03)]
        assert found == sorted(found, reverse=True)
        law = _mixtures.sum_of_log_normals(5, 1.0, 0.05)
        cut = law.trimmed(1e-3, 1e-3)
        for level in (0.5, 1.0, 2.0, 30.0, 1000.0):
            whole, part = (
                np.array([
                    x.masses @ np.maximum(x.values - level, 0.0) + x.lost,
                    x.masses @ np.maximum(level - x.values, 0.0) + level * x.zero,
                ])
                for x in (law, cut)
            )  # fmt: skip
            assert (whole <= part * (1 + 1e-12)).all() and (part <= whole + 0.01 * max(level, 1)).all()

    def test_rounding_the_other_way_would_fail(self):
        """Cell means have the right mean too, but a smaller law in convex order: below the truth."""
        z = np.linspace(-10, 10, 200_001)
        x = np.exp(z - 0.5)
        weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
        cell = np.floor((z - 0.5) / 0.8).astype(int)
        cell -= cell.min()
        mass = np.bincount(cell, weight)
        inward = np.bincount(cell, weight * x) / mass
        kept = _mixtures.log_normal(1.0, 0.8)
        levels = np.exp(np.linspace(0.5, 3.0, 11))
        truth, below, found = (
            np.array([p @ np.maximum(v - level, 0.0) for level in levels])
            for v, p in ((x, weight), (inward, mass), (kept.values, kept.masses))
        )
        assert (below < truth).all() and (below < 0.9 * truth).any() and (truth < found).all()


class TestPublishedValues:
    @pytest.mark.parametrize(("bins", "epsilon"), [(8, 3.7185), (32, 2.4040)])
    @pytest.mark.parametrize("epochs", [1, 4])
    def test_random_allocation(self, bins, epochs, epsilon):
        """Epochs with the same bin are one allocation with sigma / sqrt(epochs): the sensitivity's share."""
        assert bg.epsilon(mechanism(bins, epochs, 1.0), delta=1e-8) == pytest.approx(epsilon, rel=1e-3)

    @pytest.mark.parametrize(("epsilon", "noise"), [(1.0, 2.760), (8.0, 1.3139)])
    def test_lambda_zero(self, epsilon, noise):
        found = bg.calibrate(bg.lambda_cgd(1000, 0.0), bg.BallsInBins(1000, 10), epsilon=epsilon, delta=1e-5)
        assert found.noise_multiplier * found.sensitivity == pytest.approx(noise, rel=1e-3)

    def test_agrees_with_importance_sampling(self):
        asked = mechanism(10, 2, 0.8)
        exact, sampled = (bg.delta(asked, epsilon=1.5, method=m) for m in ("pld", "monte_carlo"))
        assert exact == pytest.approx(sampled.estimate, rel=0.01) and exact <= sampled
        assert exact <= bg.delta(asked, epsilon=1.5, method="renyi")


class TestLaws:
    def test_one_bin_is_the_gaussian_mechanism(self):
        one, plain = mechanism(1, 5, 1.3), bg.Mechanism(bg.identity(5), bg.FixedEpochs(5, 5), 1.3)
        assert bg.epsilon(one, delta=1e-6) == pytest.approx(bg.epsilon(plain, delta=1e-6), rel=1e-9)
        assert bg.epsilon(one, delta=1e-6).method == "exact"

    def test_scale_and_spelling_leave_everything(self):
        law = bg.BallsInBins(12, 3)
        same = [
            bg.identity(12), bg.toeplitz([3.0], 12), bg.lambda_cgd(12, 0.0), bg.dense(0.5 * np.eye(12)),
            General(np.eye(12)),
        ]  # fmt: skip
        found = [bg.calibrate(s, law, epsilon=1.0, delta=1e-5).noise_multiplier for s in same]
        np.testing.assert_allclose(found, found[0], rtol=2e-5)
        assert {bg.epsilon(bg.Mechanism(s, law, 1.0), delta=1e-5).method for s in same} == {"pld"}

    def test_epsilon_delta_and_calibrate_agree(self):
        for epsilon, delta in ((0.5, 1e-4), (3.0, 1e-9)):
            found = bg.calibrate(bg.identity(60), bg.BallsInBins(60, 3), epsilon=epsilon, delta=delta)
            assert 0.9999 * epsilon < bg.epsilon(found, delta=delta) <= epsilon
            assert 0.99 * delta < bg.delta(found, epsilon=epsilon) <= delta

    def test_more_noise_or_bins_less_delta_and_never_above_a_known_bin(self):
        by_noise = [bg.delta(mechanism(16, 1, s), epsilon=1.0) for s in (0.4, 0.7, 1.1)]
        by_bins = [bg.delta(mechanism(b, 1, 0.8), epsilon=1.0) for b in (1, 2, 5, 30, 300)]
        assert by_noise == sorted(by_noise, reverse=True) and by_bins == sorted(by_bins, reverse=True)
        assert by_bins[1] <= bg.delta(bg.Mechanism(bg.identity(2), bg.FixedEpochs(2, 1), 0.8), epsilon=1.0)

    def test_extremes(self):
        assert bg.epsilon(mechanism(4, 1, 1e4), delta=1e-3) == 0.0
        quiet = mechanism(4, 1, 0.02)
        assert bg.delta(quiet, epsilon=1.0) == pytest.approx(1.0, rel=1e-6) and bg.epsilon(quiet, delta=1e-5) > 100.0
        # more bins than a Gram matrix is formed for
        assert bg.epsilon(mechanism(10_000, 1, 1.0), delta=1e-5) < bg.epsilon(mechanism(100, 1, 1.0), delta=1e-5)


def test_only_independent_bins_by_name():
    law = bg.BallsInBins(8, 2)
    for strategy in (bg.lambda_cgd(8, 1e-12), General(np.diag([1.0, 1, 1, 1, 1, 1, 1, 1 + 1e-9]))):
        with pytest.raises(bg.Unsupported, match=r"BallsInBins\(.*bins are correlated or unequal.*'pld'"):
            bg.epsilon(bg.Mechanism(strategy, law, 1.0), delta=1e-5, method="pld")
    assert bg.epsilon(bg.Mechanism(bg.identity(8), law, 1.0), delta=1e-5, method="monte_carlo").method == "monte_carlo"
    assert random_allocation.of_strategy(bg.lambda_cgd(8, 0.5), law, 1.0) is None
