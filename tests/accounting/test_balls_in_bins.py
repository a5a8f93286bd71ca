"""Balls-in-bins: integration oracles, published values, honest confidence, never on the wrong side."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import bluegrad as bg
from bluegrad.accounting import _excess, _moments, _weights, balls_in_bins
from bluegrad.accounting._bins import Bins, gram
from bluegrad.accounting._excess import Proposal
from oracles import bins as oracle
from oracles import dense
from oracles.general import General

ALARM = 1e-6


def bins_of(strategy, law):
    return balls_in_bins.normalized(strategy, law, bg.sensitivity(strategy, law))


def two_bins(lam, epochs):
    """Strategy, law, means (in units of the sensitivity) of a problem with two bins."""
    strategy, law = bg.lambda_cgd(2 * epochs, lam), bg.BallsInBins(2 * epochs, epochs)
    return strategy, law, oracle.means(strategy.dense(), epochs) / bg.sensitivity(strategy, law)


class TestGram:
    @pytest.mark.parametrize(("n", "k"), [(12, 3), (12, 1), (12, 12), (30, 5), (64, 4)])
    @pytest.mark.parametrize("lam", [0.0, 0.4, 0.99])
    def test_toeplitz_is_the_dense_product(self, n, k, lam):
        m = oracle.means(bg.lambda_cgd(n, lam).dense(), k)
        found = gram(bg.lambda_cgd(n, lam), bg.BallsInBins(n, k))
        np.testing.assert_allclose(found, m @ m.T, rtol=1e-12)

    def test_other_toeplitz_and_general_strategies(self):
        for strategy in (bg.square_root(bg.PrefixSum(24)), bg.toeplitz([1, 0, 2, 0.5], 24)):
            m = oracle.means(strategy.dense(), 4)
            np.testing.assert_allclose(gram(strategy, bg.BallsInBins(24, 4)), m @ m.T, rtol=1e-12)
            general = General(strategy.dense())
            np.testing.assert_allclose(gram(general, bg.BallsInBins(24, 4)), m @ m.T, rtol=1e-12)

    def test_many_bins_without_a_large_matrix(self):
        found = gram(bg.lambda_cgd(20_000, 0.9), bg.BallsInBins(20_000, 20))
        assert found.shape == (1000, 1000)
        with pytest.raises(bg.Unsupported, match=r"lambda_cgd.*BallsInBins.*5000 bins"):
            gram(bg.lambda_cgd(5000, 0.9), bg.BallsInBins(5000, 1))

    @pytest.mark.parametrize(("c", "x", "loss"), [
        ([1], (1, 0, 1, 0), 0.4337808304830272), ([1, 0.5], (1, 0.5, 1, 0.5), 0.9052974004451105),
        ([1, 1, 0.5, 0.5], (1, 1, 1, 1), 1.5799760835798948), ([1, 0.5], (0, 1, 0.5, 1), 0.7802974004451104),
    ])  # fmt: skip
    def test_published_losses(self, c, x, loss):
        """The oracle's likelihood ratio, and the field's: u_i = <m_i, x> / s^2, L = log mean exp(u - S_ii / 2)."""
        strategy = bg.toeplitz(c, 4)
        m = oracle.means(strategy.dense(), 2)
        assert oracle.golden_loss(m, np.array(x), 1.0) == pytest.approx(loss, rel=1e-14)
        square = np.diag(gram(strategy, bg.BallsInBins(4, 2)))
        assert np.log(np.exp(m @ np.array(x) - 0.5 * square).mean()) == pytest.approx(loss, rel=1e-14)


class TestRoot:
    @pytest.mark.parametrize(("strategy", "k", "structured"), [
        (bg.lambda_cgd(600, 0.9), 2, True), (bg.square_root(bg.PrefixSum(600)), 2, True),
        (bg.toeplitz([1.0, 0.4, 0.2], 300), 1, True), (bg.lambda_cgd(40, 0.5), 4, False),
        (bg.dense(np.tril(np.random.default_rng(7).random((300, 300))) + np.eye(300)), 1, False),
    ])  # fmt: skip
    def test_its_square_is_the_gram_matrix(self, strategy, k, structured):
        bins = bins_of(strategy, bg.BallsInBins(strategy.steps, k))
        assert (bins.root.halves is not None) == structured
        found = np.empty((bins.count, bins.count), dtype=np.float32)
        bins.root.times(np.eye(bins.count, dtype=np.float32), found)
        product = found.T.astype(float) @ found
        np.testing.assert_allclose(product, bins.matrix, atol=1e-6 * bins.largest)
        assert not np.allclose(product, 1.001 * bins.matrix, atol=1e-6 * bins.largest)

    def test_equal_bins_have_one_too(self):
        found = np.empty((3, 3), dtype=np.float32)
        Bins(np.ones((3, 3))).root.times(np.eye(3, dtype=np.float32), found)
        np.testing.assert_allclose(found.T @ found, 1.0, rtol=1e-6)


class TestAgainstIntegration:
    """Two bins: delta by integration in the plane, to 1e-5 relative."""

    CASES = ((0.0, 3, 1.0, 1.0), (0.5, 3, 1.0, 1.0), (0.9, 4, 1.5, 0.5), (0.3, 2, 0.5, 4.0), (0.0, 1, 0.6, 0.2))

    def test_the_integration(self):
        # equal bins: the Gaussian mechanism
        m = np.array([[0.8, 0.6], [0.8, 0.6]])
        up, down = oracle.two_bin_deltas(m + np.array([[0, 0], [0, 1e-9]]), 1.3, 0.7)
        assert up == pytest.approx(float(dense.gaussian_delta(1.3, 0.7)), rel=1e-5)
        assert down == pytest.approx(up, rel=1e-5)

    @pytest.mark.parametrize(("lam", "k", "sigma", "epsilon"), CASES)
    def test_delta_is_a_tight_upper_bound(self, lam, k, sigma, epsilon):
        strategy, law, m = two_bins(lam, k)
        truth = max(oracle.two_bin_deltas(m, sigma, epsilon))
        found = bg.delta(bg.Mechanism(strategy, law, sigma), epsilon=epsilon, method="monte_carlo")
        assert truth <= found <= 1.03 * truth
        assert found.estimate == pytest.approx(truth, rel=0.01)
        assert (found.method, found.law) == ("monte_carlo", "balls-in-bins")
        # noise 3 % smaller is another number: the bound at the true noise doesn't cover it
        assert max(oracle.two_bin_deltas(m, 0.97 * sigma, epsilon)) > found

    @pytest.mark.parametrize(("lam", "k", "sigma", "epsilon"), CASES)
    def test_the_deterministic_bound_is_never_below(self, lam, k, sigma, epsilon):
        strategy, law, m = two_bins(lam, k)
        found = bg.delta(bg.Mechanism(strategy, law, sigma), epsilon=epsilon, method="renyi")
        assert found >= max(oracle.two_bin_deltas(m, sigma, epsilon))
        assert found.failure_probability == 0.0 and found.method == "renyi"

    def test_both_directions_matter(self):
        # with strongly correlated bins and much noise it is harder to tell that a unit is missing
        _, _, m = two_bins(0.99, 5)
        up, down = oracle.two_bin_deltas(m, 3.0, 0.3)
        assert down == pytest.approx(up, rel=0.1)
        bins = Bins(m @ m.T)
        assert _moments.add(bins, 1 / 3.0, 0.3) >= down
        nothing = Proposal((), ())
        assert _excess.excess_add(bins, 1 / 3.0, 0.3, nothing, 0.0) >= down

    @pytest.mark.parametrize(
        "delta", [pytest.param(1e-3, marks=pytest.mark.slow), 1e-5, pytest.param(1e-8, marks=pytest.mark.slow)]
    )
    def test_calibration_is_tight_and_on_the_private_side(self, delta):
        strategy, law, m = two_bins(0.5, 3)
        mechanism = bg.calibrate(strategy, law, epsilon=1.0, delta=delta)
        sigma = mechanism.noise_multiplier
        assert max(oracle.two_bin_deltas(m, sigma, 1.0)) <= delta
        assert max(oracle.two_bin_deltas(m, 0.99 * sigma, 1.0)) > delta
        assert sigma < bg.calibrate(strategy, bg.FixedEpochs(6, 3), epsilon=1.0, delta=delta).noise_multiplier
        assert bg.epsilon(mechanism, delta=delta) <= 1.0
        assert bg.delta(mechanism, epsilon=1.0) <= delta

    def test_epsilon_is_an_upper_bound(self):
        strategy, law, m = two_bins(0.3, 4)
        found = bg.epsilon(bg.Mechanism(strategy, law, 1.2), delta=1e-6)
        assert max(oracle.two_bin_deltas(m, 1.2, found)) <= 1e-6 < max(oracle.two_bin_deltas(m, 1.2, 0.99 * found))
        assert found.failure_probability == 1e-6 and found.describe()["method"] == "monte_carlo"


class TestAgainstPlainSampling:
    @pytest.mark.parametrize(("strategy", "k", "sigma", "epsilon"), [
        (bg.lambda_cgd(40, 0.7), 4, 1.0, 1.0), (bg.square_root(bg.PrefixSum(40)), 4, 2.5, 0.3),
        (bg.banded_square_root(bg.PrefixSum(40), 4), 5, 1.2, 0.5),
    ])  # fmt: skip
    def test_releases_drawn_in_full(self, strategy, k, sigma, epsilon):
        law = bg.BallsInBins(40, k)
        m = oracle.means(strategy.dense(), k) / bg.sensitivity(strategy, law)
        (up, up_error), (down, down_error) = oracle.plain_deltas(m, sigma, epsilon, 300_000, seed=5)
        found = bg.delta(bg.Mechanism(strategy, law, sigma), epsilon=epsilon, method="monte_carlo")
        worst, error = (up, up_error) if up > down else (down, down_error)
        assert worst - 5 * error <= found <= 1.03 * (worst + 5 * error)
        # power: 3 % less noise gives a delta that this check tells apart
        (up, _), (down, _) = oracle.plain_deltas(m, 0.97 * sigma, epsilon, 300_000, seed=6)
        assert max(up, down) > found or max(up, down) > worst + 3 * error

    def test_a_general_strategy_is_its_toeplitz_twin(self):
        strategy, law = bg.lambda_cgd(20, 0.6), bg.BallsInBins(20, 4)
        one, two = (bg.delta(bg.Mechanism(s, law, 1.0), epsilon=1.0) for s in (strategy, General(strategy.dense())))
        assert one == pytest.approx(two, rel=0.02)


class TestPublishedValues:
    @pytest.mark.parametrize(("lam", "epsilon", "noise"), [
        (0.5, 1, 3.420), pytest.param(0.8, 8, 2.2418, marks=pytest.mark.slow),
        pytest.param(0.95, 1, 23.4, marks=pytest.mark.slow),
        pytest.param(0.0, 1, 2.760, marks=pytest.mark.slow), pytest.param(0.0, 8, 1.3139, marks=pytest.mark.slow),
        pytest.param(0.5, 8, 1.5151, marks=pytest.mark.slow),
    ])  # fmt: skip
    def test_lambda_cgd_on_100_bins(self, lam, epsilon, noise):
        """Noise on C with unit diagonal at delta 1e-5; the published delta is exact to 1-7 %."""
        strategy, law = bg.lambda_cgd(1000, lam), bg.BallsInBins(1000, 10)
        mechanism = bg.Mechanism(strategy, law, noise / bg.sensitivity(strategy, law))
        found = bg.delta(mechanism, epsilon=epsilon, method="monte_carlo")
        assert 0.92e-5 < found < 1.2e-5 and found.estimate < 1.1e-5
        assert found <= 1.1 * found.estimate

    @pytest.mark.slow
    def test_calibration_of_the_paper_setting(self):
        strategy, law = bg.lambda_cgd(2000, 0.963157), bg.BallsInBins(2000, 20)
        mechanism = bg.calibrate(strategy, law, epsilon=1.0, delta=1e-5)
        at = bg.delta(mechanism, epsilon=1.0)
        assert 0.97e-5 <= at <= 1e-5 and at.estimate > 0.95e-5  # 1 % in sigma is some 13 % in delta
        assert bg.epsilon(mechanism, delta=1e-5) <= 1.0

    @pytest.mark.slow
    def test_small_delta(self):
        strategy, law = bg.lambda_cgd(2000, 0.9), bg.BallsInBins(2000, 20)
        sigma = bg.calibrate(strategy, law, epsilon=1.0, delta=1e-8).noise_multiplier
        renyi = bg.calibrate(strategy, law, epsilon=1.0, delta=1e-8, method="renyi").noise_multiplier
        assert 2.2 < sigma < renyi < bg.calibrate(
            strategy, bg.FixedEpochs(2000, 20), epsilon=1.0, delta=1e-8
        ).noise_multiplier  # fmt: skip


class TestLaws:
    def test_one_bin_is_the_gaussian_mechanism(self):
        for strategy in (bg.identity(6), bg.lambda_cgd(6, 0.5)):
            law = bg.BallsInBins(6, 6)
            mechanism = bg.calibrate(strategy, law, epsilon=1.0, delta=1e-5)
            plain = bg.calibrate(strategy, bg.FixedEpochs(6, 6), epsilon=1.0, delta=1e-5)
            assert mechanism.noise_multiplier == pytest.approx(plain.noise_multiplier, rel=1e-8)
            assert mechanism.noise_multiplier >= plain.noise_multiplier * (1 - 1e-12)
            assert bg.epsilon(mechanism, delta=1e-5).method == "exact"
            assert bg.epsilon(mechanism, delta=1e-5) == pytest.approx(1.0, rel=1e-7)

    def test_scaling_c_leaves_the_multiplier(self):
        law = bg.BallsInBins(20, 4)
        found = [bg.delta(bg.Mechanism(bg.toeplitz(c, 20), law, 0.9), epsilon=1.0) for c in ([1, 0.5], [4, 2])]
        assert found[0] == pytest.approx(found[1], rel=0.02)

    def test_more_noise_less_epsilon_and_never_above_unamplified(self):
        strategy, law = bg.lambda_cgd(40, 0.5), bg.BallsInBins(40, 4)
        for method in ("monte_carlo", "renyi"):
            deltas = [bg.delta(bg.Mechanism(strategy, law, s), epsilon=1.0, method=method) for s in (0.6, 0.9, 1.4)]
            assert deltas == sorted(deltas, reverse=True)
            for s, found in zip((0.6, 0.9, 1.4), deltas):
                assert found <= bg.delta(bg.Mechanism(strategy, bg.FixedEpochs(40, 4), s), epsilon=1.0)

    def test_the_deterministic_bound_lies_above_the_sampled_one(self):
        for lam, sigma in ((0.0, 0.5), (0.5, 1.0), (0.95, 2.0)):
            strategy, law = bg.lambda_cgd(40, lam), bg.BallsInBins(40, 4)
            mechanism = bg.Mechanism(strategy, law, sigma)
            sampled = bg.delta(mechanism, epsilon=1.0, method="monte_carlo")
            assert bg.delta(mechanism, epsilon=1.0, method="renyi") >= sampled.estimate * 0.98
            assert bg.delta(mechanism, epsilon=1.0) <= sampled

    def test_equal_questions_get_equal_answers_and_others_other_samples(self):
        mechanism = bg.Mechanism(bg.lambda_cgd(20, 0.5), bg.BallsInBins(20, 4), 1.0)
        one = bg.delta(mechanism, epsilon=1.0)
        balls_in_bins.check.cache_clear()
        assert bg.delta(mechanism, epsilon=1.0) == one
        seeds = {tuple(balls_in_bins._seed(bins_of(bg.lambda_cgd(20, lam), bg.BallsInBins(20, 4)), scale, e, 0, what))
                 for lam in (0.5, 0.6) for scale in (1.0, 1.1) for e in (1.0, 1.1)
                 for what in ("pilot", "remove", "add")}  # fmt: skip
        assert len(seeds) == 24

    def test_a_prefix_is_whole_epochs_and_spends_no_more_than_all(self):
        strategy, law = bg.lambda_cgd(20, 0.5), bg.BallsInBins(20, 4)
        assert law.prefix(1) == law.prefix(5) == bg.BallsInBins(5, 1) and law.prefix(16) == law
        mechanism = bg.Mechanism(strategy, law, 1.0)
        assert mechanism.after(16) is mechanism
        spent = [bg.epsilon(mechanism.after(t), delta=1e-5, method="renyi") for t in (3, 5, 6, 12, 20)]
        assert spent == sorted(spent) and spent[0] == spent[1] and spent[-1] == bg.epsilon(
            mechanism, delta=1e-5, method="renyi"
        )  # fmt: skip
        part = mechanism.after(7)
        assert part.noise_scale(2.0) == pytest.approx(mechanism.noise_scale(2.0), rel=1e-12)
        # the same noise on the prefix of C, whose bins are those of two epochs
        m = oracle.means(strategy.dense()[:10, :10], 2)
        assert np.linalg.norm(m, axis=1).max() == pytest.approx(part.sensitivity, rel=1e-12)


class TestConfidence:
    def test_the_bound_fails_no_more_often_than_claimed(self):
        """Weights of 1 / bet with probability p, else 0: the hardest there are; failure probability 0.2."""
        rng = np.random.default_rng(1)
        for p, count in ((0.3, 50), (0.02, 500), (0.002, 1000)):
            for bet in (1.0, 0.1):
                hits = rng.binomial(count, p, size=2000)
                bounds = {h: _weights.upper_confidence(_weights.Weights(np.ones(h), count), bet, 0.2)
                          for h in set(hits.tolist())}  # fmt: skip
                fails = sum(bounds[h] < p for h in hits.tolist())
                assert fails <= stats.binom.isf(ALARM, 2000, 0.2)

    def test_a_bound_of_the_wrong_sign_fails_the_same_test(self):
        rng = np.random.default_rng(2)
        hits = rng.binomial(500, 0.02, size=2000)
        fails = sum(2 * h / 500 - _weights.upper_confidence(_weights.Weights(np.ones(h), 500), 0.1, 0.2) < 0.02
                    for h in hits.tolist())  # fmt: skip
        assert fails > stats.binom.isf(ALARM, 2000, 0.2)

    @pytest.mark.parametrize("repeats", [20, pytest.param(200, marks=pytest.mark.slow)])
    def test_on_a_known_delta(self, repeats):
        """Streams of few samples, failure probability 0.2 in all directions together."""
        strategy, law, m = two_bins(0.5, 3)
        truth = max(oracle.two_bin_deltas(m, 1.0, 1.0))
        bins = bins_of(strategy, law)
        found = [balls_in_bins.check.__wrapped__(bins, 1.0, 1.0, 0.2, 2000, seed) for seed in range(repeats)]
        fails = sum(bound < truth for bound, _ in found)
        assert fails <= stats.binom.isf(ALARM, repeats, 0.2)
        assert np.mean([estimate for _, estimate in found]) == pytest.approx(truth, rel=0.02)
        assert sum(2 * estimate - bound < truth for bound, estimate in found) > stats.binom.isf(ALARM, repeats, 0.2)

    def test_never_below_the_mean_nor_far_above(self):
        rng = np.random.default_rng(3)
        x = rng.exponential(size=4000).clip(max=10.0)
        bet = np.sqrt(2 * np.log(1e6) / (4000 * 2.0))
        bound = _weights.upper_confidence(_weights.Weights(x, 4000), min(bet, 0.1), 1e-6)
        assert x.mean() < bound < x.mean() + 1.3 * np.sqrt(2 * np.log(1e6) * 2.0 / 4000)
        assert _weights.upper_confidence(_weights.Weights(np.empty(0), 1000), 1.0, 1e-6) == pytest.approx(
            -np.log(1e-6) / 1000, rel=0.02
        )


class TestExcess:
    """The mean of what truncation cuts off, against integration in the plane (two bins) or sampling."""

    @pytest.mark.parametrize("ceiling", [0.01, 0.05, 0.3])
    @pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9])
    def test_two_bins(self, ceiling, correlation):
        epsilon, scale = 0.5, 0.8
        matrix = np.array([[1.0, correlation], [correlation, 0.9]])
        proposal = Proposal((3.0, 2.0), (0.5, 0.3), (1.5,), (0.2,))
        t = np.linspace(-10, 10, 1501)
        root = np.linalg.cholesky(scale**2 * matrix)
        x, y = np.meshgrid(t, t, indexing="ij")
        u = np.stack([root[0, 0] * x, root[1, 0] * x + root[1, 1] * y])
        weight = np.exp(-0.5 * (x**2 + y**2)) / (2 * np.pi) * (t[1] - t[0]) ** 2
        square = scale**2 * np.diag(matrix)[:, None, None]
        ratio = np.exp(u - square / 2).mean(axis=0)
        density = sum(w * np.exp(c * u - c * c * square / 2).mean(axis=0) for c, w in ((3.0, 0.5), (2.0, 0.3)))
        mean_square = scale**2 * matrix.mean()
        density = density + 0.2 * np.exp(1.5 * u.mean(axis=0) - 1.5**2 * mean_square / 2)
        assert (weight * density).sum() == pytest.approx(1.0, rel=1e-6)
        truth = (weight * np.maximum(ratio - np.exp(epsilon) - ceiling * density, 0.0)).sum()
        found = _excess.excess_remove(Bins(matrix), scale, epsilon, proposal, ceiling)
        whole = (weight * np.maximum(ratio - np.exp(epsilon), 0.0)).sum()
        assert truth <= found
        low = Proposal((), (), (-1.5, 0.0), (0.7, 0.3))
        density = 0.7 * np.exp(-1.5 * u.mean(axis=0) - 1.5**2 * mean_square / 2) + 0.3
        truth = (weight * np.maximum(1.0 - np.exp(epsilon) * ratio - ceiling * density, 0.0)).sum()
        found = _excess.excess_add(Bins(matrix), scale, epsilon, low, ceiling)
        assert truth <= found <= 1.0 and whole > 0.0

    def test_many_bins_by_sampling(self):
        """Ten bins, ceilings low enough that plain samples see the excess."""
        strategy, law = bg.lambda_cgd(40, 0.8), bg.BallsInBins(40, 4)
        bins, scale, epsilon = bins_of(strategy, law), 0.8, 0.5
        proposal = Proposal((4.0, 2.0), (0.5, 0.5))
        rng = np.random.default_rng(4)
        u = rng.multivariate_normal(np.zeros(10), scale**2 * bins.matrix, size=400_000)
        square = scale**2 * bins.squares
        for ceiling in (0.02, 0.1, 0.3):
            density = sum(0.5 * np.exp(c * u - c * c * square / 2).mean(axis=1) for c in (4.0, 2.0))
            cut = np.maximum(np.exp(u - square / 2).mean(axis=1) - np.exp(epsilon) - ceiling * density, 0.0)
            assert cut.mean() > 0.0 or ceiling > 0.1
            bound = _excess.excess_remove(bins, scale, epsilon, proposal, ceiling)
            assert cut.mean() - 5 * cut.std() / 400_000**0.5 <= bound

    def test_it_vanishes_with_a_high_ceiling(self):
        bins = bins_of(bg.identity(40), bg.BallsInBins(40, 4))
        proposal = Proposal((3.0,), (1.0,))
        found = [_excess.excess_remove(bins, 1.0, 1.0, proposal, c) for c in (0.01, 0.1, 1.0, 10.0)]
        assert found == sorted(found, reverse=True) and found[-1] < 1e-6


class TestRefusals:
    def test_negative_entries_by_name(self):
        strategy = bg.toeplitz([1.0, -0.2], 8)
        with pytest.raises(bg.Unsupported, match=r"toeplitz.*BallsInBins.*negative entries, and C has -0\.2"):
            bg.calibrate(strategy, bg.BallsInBins(8, 2), epsilon=1.0, delta=1e-5)
        with pytest.raises(bg.Unsupported, match="negative entries"):
            bg.sensitivity(General([[1.0, 0.0], [-0.5, 1.0]]), bg.BallsInBins(2, 1))

    def test_quick_is_another_bound_and_little_looser(self):
        strategy, law, m = two_bins(0.5, 3)
        mechanism = bg.Mechanism(strategy, law, 1.0)
        found = bg.epsilon(mechanism, delta=1e-5, method="quick")
        assert max(oracle.two_bin_deltas(m, 1.0, found)) <= 1e-5 < max(oracle.two_bin_deltas(m, 1.0, 0.9 * found))
        assert found.failure_probability in (0.0, 1e-6)
        for other in (bg.FixedEpochs(6, 3), bg.CyclicPoisson(6, 6, 0.5)):
            plain = bg.Mechanism(bg.identity(6), other, 1.0)
            assert bg.epsilon(plain, delta=1e-5, method="quick") == bg.epsilon(plain, delta=1e-5)

    def test_methods_and_probabilities(self):
        mechanism = bg.Mechanism(bg.identity(8), bg.BallsInBins(8, 2), 1.0)
        with pytest.raises(ValueError, match=r"method='exact'.*BallsInBins.*choose one of"):
            bg.epsilon(mechanism, delta=1e-5, method="exact")
        with pytest.raises(ValueError, match=r"method='renyi'.*FixedEpochs"):
            bg.calibrate(bg.identity(8), bg.FixedEpochs(8, 2), epsilon=1, delta=1e-5, method="renyi")
        for bad in (0.0, 0.7, -1, "often"):
            with pytest.raises(ValueError, match="failure_probability="):
                bg.epsilon(mechanism, delta=1e-5, failure_probability=bad)
        with pytest.raises(ValueError, match=r"epochs=3: must divide steps=8"):
            bg.BallsInBins(8, 3)
        with pytest.raises(ValueError, match=r"delta=1.0"):
            bg.delta(mechanism, epsilon=1.0) and bg.epsilon(mechanism, delta=1.0)

    def test_extreme_targets(self):
        """Where Monte Carlo has nothing to say the deterministic bound answers; nothing is below the truth."""
        strategy, law = bg.lambda_cgd(20, 0.5), bg.BallsInBins(20, 4)
        loud = bg.Mechanism(strategy, law, 1e4)
        assert bg.epsilon(loud, delta=1e-3) == 0.0
        quiet = bg.Mechanism(strategy, law, 0.02)
        assert bg.delta(quiet, epsilon=1.0) == pytest.approx(1.0, rel=1e-6)
        assert bg.epsilon(quiet, delta=1e-5) > 100.0

    def test_the_record_tells_how_it_was_found(self):
        mechanism = bg.Mechanism(bg.lambda_cgd(8, 0.5), bg.BallsInBins(8, 2), 1.0)
        assert mechanism.describe()["participation"] == {
            "law": "balls-in-bins", "steps": 8, "epochs": 2, "bins": 4, "neighbours": "zero-out",
        }  # fmt: skip
        found = bg.delta(mechanism, epsilon=1.0, failure_probability=1e-4)
        assert found.failure_probability == 1e-4
        dense_epsilon = float(dense.gaussian_epsilon(1.0, 1e-5))
        assert bg.epsilon(bg.Mechanism(bg.identity(8), bg.FixedEpochs(8, 2), 1.0), delta=1e-5).describe() == {
            "value": pytest.approx(dense_epsilon, rel=1e-6), "law": "gaussian", "method": "exact",
            "failure_probability": 0.0,
        }  # fmt: skip


@pytest.mark.parametrize("law", [bg.BallsInBins(8, 2), bg.CyclicPoisson(8, 8, 0.5)])
@pytest.mark.parametrize("make", [
    lambda: bg.tree_aggregation(8), lambda: bg.fourier(8), lambda: bg.dense(np.eye(8)[::-1] + 2.0),
    lambda: bg.tree_aggregation(16).prefix(8),
])  # fmt: skip
def test_only_matrices_that_are_released_as_they_are(make, law):
    """These laws look at C's entries; where the noise isn't C^-1 what is released has other entries."""
    with pytest.raises(bg.Unsupported, match="square lower-triangular"):
        bg.sensitivity(make(), law)
