"""What the audit's bounds prove: coverage with power, against exact laws and sums over all patterns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom, multivariate_normal

import bluegrad as bg
from bluegrad.audit import _evidence
from bluegrad.audit._attack import log_likelihood_ratio
from bluegrad.audit._canary import Canary, _worst_signs, choose_canary, draw, whitened
from bluegrad.tasks.mechanisms import FAMILIES, build_strategy


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_clopper_pearson_is_where_the_binomial_tail_is_the_failure_probability():
    for successes, trials, failure in ((1, 10, 0.1), (7, 10, 1e-3), (500, 1000, 1e-9)):
        low = float(_evidence.at_least(np.array(successes), trials, failure))
        high = float(_evidence.at_most(np.array(successes), trials, failure))
        assert binom.sf(successes - 1, trials, low) == pytest.approx(failure)
        assert binom.cdf(successes, trials, high) == pytest.approx(failure)
    assert _evidence.at_least(np.array(0), 10, 0.1) == 0.0 and _evidence.at_most(np.array(10), 10, 0.1) == 1.0


def gaussian_scores(count: int, mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Log ratios of Normal(mu, 1) against Normal(0, 1) under either."""
    z = rng(seed).standard_normal((2, count))
    return mu * z[0] + 0.5 * mu * mu, mu * z[1] - 0.5 * mu * mu


def test_bounds_are_above_the_truth_as_seldom_as_they_say():
    mu, failure, trials = 1.0, 0.2, 1500
    exact = bg.Mechanism(bg.identity(1), bg.SinglePass(1), 1.0 / mu)
    point = 0.3
    truth_delta, truth_epsilon = float(bg.delta(exact, epsilon=point)), float(bg.epsilon(exact, delta=1e-2))
    over = {"delta": 0, "plain": 0, "epsilon": 0}
    for seed in range(trials):
        present, absent = gaussian_scores(400, mu, seed)
        over["delta"] += _evidence.delta_at_least(present, absent, point, failure) > truth_delta
        over["plain"] += (present > point).mean() - np.exp(point) * (absent > point).mean() > truth_delta
        over["epsilon"] += _evidence.epsilon_at_least(present, absent, 1e-2, failure) > truth_epsilon
    slack = 5.0 * np.sqrt(failure * (1.0 - failure) / trials)
    assert over["delta"] <= trials * (failure + slack) and over["epsilon"] <= trials * (failure + slack)
    assert over["plain"] > trials * (failure + slack), "an estimate without margin is seen to be no bound"
    assert over["delta"] > 0


def test_bounds_come_close_to_the_truth():
    exact = bg.Mechanism(bg.identity(1), bg.SinglePass(1), 1.0)
    present, absent = gaussian_scores(400_000, 1.0, 1)
    assert 0.97 < _evidence.delta_at_least(present, absent, 0.1, 1e-9) / bg.delta(exact, epsilon=0.1) < 1.0
    # an event of the whole line: what epsilon can be proved at a large delta is all of it
    assert 0.9 < _evidence.epsilon_at_least(present, absent, 0.05, 1e-9) / bg.epsilon(exact, delta=0.05) < 1.0


def test_both_directions_count():
    """A score that is informative in its lower tail only."""
    absent = np.where(rng().random(20_000) < 0.3, -5.0, 0.0)
    present = np.where(rng(1).random(20_000) < 0.001, -5.0, 0.0)
    assert _evidence.delta_at_least(present, absent, 0.1, 1e-6) > 0.25
    assert 4.0 < _evidence.epsilon_at_least(present, absent, 1e-5, 1e-6) < np.log(0.3 / 0.001)


def test_the_needed_repetitions_give_half_of_delta():
    exact = bg.Mechanism(bg.identity(1), bg.SinglePass(1), 1.5)
    point = 0.05
    target = float(bg.delta(exact, epsilon=point))
    count = _evidence.repetitions_needed(point, target, 1e-6)
    ratios = [
        _evidence.delta_at_least(*gaussian_scores(count, 1.0 / 1.5, seed), point, 1e-6) / target for seed in range(300)
    ]
    assert 0.45 < np.mean(ratios) < 0.55


def test_white_noise_is_seldom_refused_and_other_noise_always():
    n, count = 6, 400
    low = 0
    for seed in range(1000):
        w = rng(seed).standard_normal((n, count))
        low += _evidence.white_noise_p_value(w @ w.T, count) < 0.2
    assert 0.1 * 1000 < low < (0.2 + 5 * 0.0127) * 1000
    w = rng(5).standard_normal((n, 20_000))
    for change in (lambda x: 1.1 * x, lambda x: 0.9 * x, lambda x: np.array([*x[:-1], x[-1] + 0.1 * x[0]])):
        v = change(w)
        assert _evidence.white_noise_p_value(v @ v.T, 20_000) < 1e-12
    same = np.array([w[0], w[0]])
    assert _evidence.white_noise_p_value(same @ same.T, 20_000) == 0.0


LAWS = [
    (bg.FixedEpochs(6, 2), bg.lambda_cgd(6, 0.6)),
    (bg.BallsInBins(6, 2), bg.lambda_cgd(6, 0.6)),
    (bg.CyclicPoisson(5, 2, 0.3), bg.toeplitz([1.0, 0.7], 5)),
    (bg.Poisson(5, 0.4), bg.identity(5)),
]


def all_patterns(law, canary: Canary) -> list[tuple[float, np.ndarray]]:
    """Every pattern of the canary with its probability, by hand."""
    n = law.steps
    if isinstance(law, bg.FixedEpochs):
        return [(1.0, canary.pattern.astype(float))]
    if isinstance(law, bg.BallsInBins):
        return [(1 / 3, np.array([t % 3 == i for t in range(n)], dtype=float)) for i in range(3)]
    due = range(0, n, getattr(law, "period", 1))
    out = []
    for choice in itertools.product((0.0, 1.0), repeat=len(due)):
        pattern = np.zeros(n)
        pattern[list(due)] = choice
        out.append((law.rate ** sum(choice) * (1 - law.rate) ** (len(due) - sum(choice)), pattern))
    return out


@pytest.mark.parametrize("law, strategy", LAWS, ids=lambda x: type(x).__name__)
def test_the_attack_is_the_likelihood_ratio_over_all_patterns(law, strategy):
    mechanism = bg.Mechanism(strategy, law, 0.8)
    effects = whitened(mechanism)
    canary = choose_canary(law, effects)
    n = mechanism.noise_scale(1.0) * np.linalg.inv(strategy.dense())
    covariance = n @ n.T
    patterns = all_patterns(law, canary)
    assert sum(p for p, _ in patterns) == pytest.approx(1.0)
    y = 2.0 * rng(3).standard_normal((law.steps, 7))
    mixture = sum(
        p * multivariate_normal(canary.signs * pattern, covariance).pdf(y.T) for p, pattern in patterns
    )  # fmt: skip
    expected = np.log(mixture / multivariate_normal(np.zeros(law.steps), covariance).pdf(y.T))
    np.testing.assert_allclose(log_likelihood_ratio(law, effects, canary)(effects @ y), expected, rtol=1e-9)


@pytest.mark.parametrize("law, strategy", LAWS, ids=lambda x: type(x).__name__)
def test_stand_ins_join_as_the_law_says(law, strategy):
    canary = choose_canary(law, whitened(bg.Mechanism(strategy, law, 1.0)))
    part = draw(law, canary, 20_000)
    assert part.joined.shape == (law.steps, len(part.chosen)) and len(part.chosen) == 20_000
    patterns = all_patterns(law, canary)
    found, counts = np.unique(part.joined.T.astype(float), axis=0, return_counts=True)
    expected = {tuple(pattern): p for p, pattern in patterns}
    assert {tuple(row) for row in found} == set(expected)
    for row, count in zip(found, counts):
        p = expected[tuple(row)]
        assert abs(count - 20_000 * p) <= 6.5 * np.sqrt(20_000 * p * (1 - p))


def test_the_worst_signs_are_found():
    for seed in range(40):
        m = rng(seed).standard_normal((4, 6))
        gram = m.T @ m
        signs, value = _worst_signs(gram)
        best = max(float(np.array(s) @ gram @ np.array(s)) for s in itertools.product((-1.0, 1.0), repeat=6))
        assert value == pytest.approx(signs @ gram @ signs) and value <= best + 1e-9
        assert value >= 0.9 * best
    gram = np.array([[1.0, -0.5], [-0.5, 1.0]])
    assert _worst_signs(gram)[1] == pytest.approx(3.0), "alternating signs"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_canary_is_as_visible_as_the_sensitivity_allows(name):
    """Effect of the canary over the noise: at most one over the multiplier, and that where nothing is lost."""
    law = bg.FixedEpochs(24, 4)
    mechanism = bg.Mechanism(build_strategy(name, None, law), law, 2.0)
    effects = whitened(mechanism)
    canary = choose_canary(law, effects)
    visible = 2.0 * float(np.linalg.norm(effects @ (canary.signs * canary.pattern)))
    assert visible <= 1.0 + 1e-9
    assert visible >= (0.85 if name == "tree-online" else 0.97), "an online decoder doesn't use all of the tree"
