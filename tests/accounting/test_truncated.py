"""Largest batches under Poisson sampling: brute force on a few units, the sampler's law, the price, refusals."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import bluegrad as bg
from bluegrad.accounting import poisson
from bluegrad.sampling import batch_stream
from oracles import truncated as oracle

KEY = bg.NoiseKey(bytes.fromhex("c0ffee00112233445566778899aabbcc"))
ALARM = 1e-6


class TestAgainstBruteForce:
    def test_the_oracle_counts_every_draw(self):
        found = oracle.sums([1.0, -1.0], 0.5, 1)
        assert found == {0.0: 0.25, 1.0: 0.375, -1.0: 0.375}
        assert oracle.sums([1.0, 1.0, 1.0], 0.25, 3)[2.0] == pytest.approx(stats.binom.pmf(2, 3, 0.25))

    @pytest.mark.parametrize("steps", [1, 2])
    @pytest.mark.parametrize(("values", "rate", "largest", "sigma", "epsilon"), [
        ([-1.0, 1.0], 0.9, 1, 0.7, 2.0), ([-1.0, 1.0], 0.1, 1, 0.7, 0.5), ([1.0, 1.0, 1.0], 0.3, 2, 0.8, 0.5),
        ([-1.0, 1.0, 1.0], 0.9, 1, 0.5, 3.0), ([1.0, 0.0, -1.0], 0.05, 1, 1.0, 0.2),
    ])  # fmt: skip
    def test_never_below(self, steps, values, rate, largest, sigma, epsilon):
        law = bg.Poisson(steps, rate, largest=largest, units=len(values))
        found = bg.delta(bg.Mechanism(bg.identity(steps), law, sigma), epsilon=epsilon)
        truth = max(oracle.deltas(values, rate, largest, sigma, epsilon, steps))
        assert truth <= found * (1 + 1e-9)
        free = bg.delta(bg.Mechanism(bg.identity(steps), bg.Poisson(steps, rate), sigma), epsilon=epsilon)
        price = steps * stats.binom.sf(largest, len(values), rate) * (1 + np.exp(epsilon))
        assert found == pytest.approx(min(1.0, free + price), rel=1e-5)

    def test_without_its_price_the_bound_would_fail(self):
        """A unit that takes another's place moves the sum by 2, which Poisson sampling alone never does."""
        values, rate, sigma, epsilon = [-1.0, 1.0], 0.9, 0.7, 4.0
        free = bg.delta(bg.Mechanism(bg.identity(1), bg.Poisson(1, rate), sigma), epsilon=epsilon)
        assert max(oracle.deltas(values, rate, 1, sigma, epsilon, 1)) > 1.1 * free
        assert max(oracle.deltas(values, rate, 2, sigma, epsilon, 1)) <= free


class TestThePrice:
    def test_epsilon_delta_and_calibrate_agree(self):
        law = bg.Poisson(50, 0.05, largest=100, units=1000)
        found = bg.calibrate(bg.identity(50), law, epsilon=1.0, delta=1e-5)
        assert bg.delta(found, epsilon=1.0) <= 1e-5 and 0.999 < bg.epsilon(found, delta=1e-5) <= 1.0
        plain = bg.calibrate(bg.identity(50), bg.Poisson(50, 0.05), epsilon=1.0, delta=1e-5)
        assert plain.noise_multiplier <= found.noise_multiplier < 1.001 * plain.noise_multiplier

    def test_larger_batches_are_cheaper_and_all_units_are_free(self):
        laws = [bg.Poisson(50, 0.05, largest=b, units=1000) for b in (80, 90, 110, 1000)]
        found = [bg.delta(bg.Mechanism(bg.identity(50), law, 0.8), epsilon=1.0) for law in laws]
        assert found == sorted(found, reverse=True) and found[0] > 1.05 * found[-1]
        assert found[-1] == bg.delta(bg.Mechanism(bg.identity(50), bg.Poisson(50, 0.05), 0.8), epsilon=1.0)

    def test_epsilon_at_a_price_that_counts(self):
        mechanism = bg.Mechanism(bg.identity(50), bg.Poisson(50, 0.05, largest=83, units=1000), 0.8)
        delta = 3 * poisson.overflow(83, 1000, 0.05, 50)
        found = bg.epsilon(mechanism, delta=delta * 10)
        assert bg.delta(mechanism, epsilon=found) <= delta * 10 < bg.delta(mechanism, epsilon=0.99 * found)
        assert bg.epsilon(mechanism, delta=delta / 2) == np.inf  # 1 + e^epsilon is at least 2
        with pytest.raises(ValueError, match=r"delta=.*above the largest size cost .*raise `largest`"):
            bg.calibrate(bg.identity(50), mechanism.participation, epsilon=1.0, delta=delta / 2)

    def test_cyclic_counts_one_group_alone(self):
        strategy = bg.toeplitz([1, 0.5], 20)
        cyclic = bg.Mechanism(strategy, bg.CyclicPoisson(20, 2, 0.1, largest=40, units=399), 1.0)
        plain = bg.Mechanism(bg.identity(10), bg.Poisson(10, 0.1, largest=40, units=200), 1.0)
        assert bg.delta(cyclic, epsilon=1.0) == bg.delta(plain, epsilon=1.0)

    def test_the_law_is_on_record_and_in_its_prefix(self):
        law = bg.Poisson(50, 0.05, largest=100, units=1000)
        assert law.prefix(7) == bg.Poisson(7, 0.05, 100, 1000)
        assert law.describe()["largest"] == 100 and law.describe()["units"] == 1000
        assert "largest" not in bg.Poisson(50, 0.05).describe()
        cyclic = bg.CyclicPoisson(50, 5, 0.5, largest=100, units=1000)
        assert cyclic.prefix(20) == bg.CyclicPoisson(20, 5, 0.5, 100, 1000) and cyclic.describe()["units"] == 1000


class TestSampler:
    @pytest.mark.parametrize("law", [
        bg.Poisson(4000, 0.5, largest=2, units=5), bg.CyclicPoisson(8000, 2, 0.5, largest=2, units=10),
    ])  # fmt: skip
    def test_a_uniformly_random_subset_of_a_poisson_draw(self, law):
        size = 5 if isinstance(law, bg.Poisson) else 10
        stream = batch_stream(law, size, KEY)
        whole = batch_stream(type(law)(**{**vars(law), "largest": None, "units": None}), size, KEY)
        cut, every = Counter(), law.steps // 4000
        for step in range(0, law.steps, every):
            batch, drawn = stream.batch(step), whole.batch(step)
            assert len(batch) == min(2, len(drawn)) and set(batch) <= set(drawn)
            if len(drawn) == 5:
                cut[tuple(sorted(batch.tolist()))] += 1
        pairs = list(combinations(sorted(whole.batch(0).tolist() if size == 10 else range(5)), 2)) if size == 5 else [
            *combinations(sorted({i for pair in cut for i in pair}), 2)
        ]  # fmt: skip
        counts = [cut[pair] for pair in pairs]
        assert len(counts) == 10 and stats.chisquare(counts).pvalue > ALARM
        assert stats.binom.sf(sum(counts) - 1, 4000, 0.5**5) > ALARM < stats.binom.cdf(sum(counts), 4000, 0.5**5)
        assert stats.chisquare(np.array(counts) + np.array([sum(counts)] + [0] * 9)).pvalue < ALARM  # power

    def test_the_expected_size_stays(self):
        stream = batch_stream(bg.Poisson(10, 0.5, largest=2, units=8), 6, KEY)
        assert stream.expected_batch_size == 3.0

    @pytest.mark.parametrize("law", [bg.Poisson(4, 0.5, 2, 8), bg.CyclicPoisson(4, 2, 0.5, 2, 8)])
    def test_more_units_than_accounted_are_refused(self, law):
        batch_stream(law, 8, KEY)
        with pytest.raises(ValueError, match=r"size=9: is more than the units=8"):
            batch_stream(law, 9, KEY)


def test_refusals():
    for make in (lambda **o: bg.Poisson(4, 0.5, **o), lambda **o: bg.CyclicPoisson(4, 2, 0.5, **o)):
        for bad in ({"largest": 3}, {"units": 3}, {"largest": 0, "units": 3}, {"largest": 2, "units": 1.5}):
            with pytest.raises(ValueError, match=r"(largest|units)="):
                make(**bad)
        mechanism = bg.Mechanism(bg.identity(4), make(largest=2, units=8), 1.0)
        for ask in (lambda m=mechanism: bg.zcdp(m), lambda m=mechanism: bg.renyi(m, order=2)):
            with pytest.raises(bg.Unsupported, match=r"Renyi.*largest=2"):
                ask()
