"""Sensitivity and error: brute force, reference values, theorems, scale."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

import bluegrad as bg
from oracles import dense

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "values.json"


def reference(section: str) -> list[dict]:
    assert REFERENCE.is_file(), f"{REFERENCE} is needed for this test"
    return json.loads(REFERENCE.read_text())[section]


def root(n: int, sign: int) -> np.ndarray:
    """Coefficients of (1 - x)^(-sign/2) by the binomial formula."""
    r = [math.comb(2 * t, t) / 4**t for t in range(n)]
    return np.array(r if sign > 0 else [1.0] + [-r[t] / (2 * t - 1) for t in range(1, n)])


def workload(entry: dict) -> bg.PrefixSum | bg.Sgd:
    n, p = entry["steps"], entry["params"]
    if "momentum" not in p:
        return bg.PrefixSum(n)
    assert p.get("learning_rates", "linspace(1,0.05,steps)") == "linspace(1,0.05,steps)"
    rates = np.linspace(1, 0.05, n) if "learning_rates" in p else None
    return bg.Sgd(n, momentum=p["momentum"], weight_decay=p["weight_decay"], learning_rates=rates)


def build(entry: dict) -> bg.Strategy:
    n, p, name, work = entry["steps"], entry["params"], entry["strategy"], workload(entry)
    return {
        "identity": lambda: bg.identity(n),
        "lambda_cgd": lambda: bg.lambda_cgd(n, p["lam"]),
        "nu_dp_ftrl": lambda: bg.nu_dp_ftrl(n, p["nu"]),
        "square_root": lambda: bg.square_root(work),
        "banded_square_root": lambda: bg.banded_square_root(work, p["bands"]),
        "banded_inverse_square_root": lambda: bg.banded_inverse_square_root(work, p["bands"]),
        "tree_aggregation": lambda: bg.tree_aggregation(n, decoder=p["decoder"]),
        "fourier": lambda: bg.fourier(n, decoder=p["decoder"]),
    }[name]()


def test_reference_values_to_nine_digits():
    checked = 0
    for entry in reference("strategies"):
        strategy = build(entry)
        n, work = entry["steps"], workload(entry)
        for law in (bg.MinSeparation(n, entry["separation"], entry["times"]), bg.FixedEpochs(n, entry["times"])):
            assert bg.sensitivity(strategy, law) == pytest.approx(entry["sensitivity"], rel=1e-9)
            assert bg.certify(strategy, law).exact
            assert bg.rmse(strategy, work, law) == pytest.approx(entry["rmse"], rel=1e-9)
            assert bg.max_error(strategy, work, law) == pytest.approx(entry["max_error"], rel=1e-9)
        single = entry["sensitivity_single"] if "sensitivity_single" in entry else entry["sensitivity"]
        assert bg.sensitivity(strategy, bg.SinglePass(n)) == pytest.approx(single, rel=1e-9)
        checked += 1
    assert checked == len(reference("strategies")) >= 38


def laws(n: int, rng: np.random.Generator) -> list[tuple[object, list[dense.Pattern]]]:
    k = int(rng.choice([k for k in range(1, n + 1) if n % k == 0]))
    b, times = int(rng.integers(1, n + 1)), int(rng.integers(1, n + 1))
    return [
        (bg.SinglePass(n), [(i,) for i in range(n)]),
        (bg.FixedEpochs(n, k), dense.fixed_patterns(n, k)),
        (bg.MinSeparation(n, b, times), dense.separated_patterns(n, b, times)),
    ]


@pytest.mark.parametrize("kind", ["mixed signs", "non-negative", "rising", "inverse of mixed signs", "inverse"])
@pytest.mark.parametrize("seed", range(6))
def test_sensitivity_is_brute_force_over_patterns_signs_and_vectors(kind, seed):
    rng = np.random.default_rng([seed, len(kind)])
    for _ in range(4):
        n = int(rng.integers(2, 9))
        bands = int(rng.integers(1, n + 1))
        x = rng.standard_normal(bands) if "mixed" in kind else np.sort(rng.random(bands))
        x = -x if kind == "inverse" else x
        x[0] = math.copysign(max(abs(x[0]), 0.3), x[0])
        make = bg.banded_inverse_toeplitz if "inverse" in kind else bg.toeplitz
        c = dense.toeplitz(dense.inverse_coefficients(x, n) if "inverse" in kind else x, n)
        for law, patterns in laws(n, rng):
            found = bg.certify(make(x, n), law)
            signs, (low, up) = dense.sign_sensitivity(c, patterns), dense.vector_truth(c, patterns)
            assert signs <= up * (1 + 1e-9) and up - low <= 1e-9 * up, "the oracle itself"
            assert found.value == bg.sensitivity(make(x, n), law)
            assert found.value >= max(signs, low) * (1 - 1e-12)
            assert found.exact, "small problems are solved exactly"
            assert found.value <= up * (1 + 1e-8)
            if low <= signs * (1 + 1e-9) or (c.T @ c >= 0).all():
                assert found.value == pytest.approx(signs, rel=1e-8)


def test_vectors_beat_signs_for_a_strategy_too():
    """For 1, .4, -.3 the best signs give sqrt(4.25); who took that for the sensitivity would add 2 % too little."""
    strategy, law = bg.toeplitz([1, 0.4, -0.3], 3), bg.FixedEpochs(3, 3)
    low, up = dense.vector_truth(strategy.dense(), [(0, 1, 2)])
    signs = dense.sign_sensitivity(strategy.dense(), [(0, 1, 2)])
    assert signs == pytest.approx(math.sqrt(4.25), rel=1e-12)
    assert low * (1 - 1e-12) <= bg.sensitivity(strategy, law) <= up * (1 + 1e-8)
    assert bg.sensitivity(strategy, law) > 1.02 * signs


@pytest.mark.parametrize("coefficients", [
    [1.0, 0.1507880191683687, 0.44031346718818754, 0.23956396182952333],
    [-1.0, -0.18384893735916907, -0.8469300911863132, -0.2576400495189707, -0.25778516154026065, -0.03460645830456022],
    [1.0, -0.34513639503403926, 0.5589434158058577],
])  # fmt: skip
def test_a_slow_semidefinite_program_still_bounds_from_above(coefficients):
    """Contributions that nearly tie: the ascent is slow, so the answer may not count as exact, but it is no lower."""
    for n in (len(coefficients), len(coefficients) + 1):
        c = dense.toeplitz(dense.inverse_coefficients(coefficients, n), n)
        low, up = dense.vector_truth(c, [tuple(range(n))])
        found = bg.certify(bg.banded_inverse_toeplitz(coefficients, n), bg.FixedEpochs(n, n))
        assert low * (1 - 1e-12) <= found.value <= up * (1 + 1e-7)
        assert not found.exact or found.value <= low * (1 + 1e-9)


class Plain(bg.Strategy):
    """Any invertible matrix: the interface's defaults, no Toeplitz structure for a rule to rest on."""

    def __init__(self, matrix: np.ndarray):
        self.matrix, self.steps = matrix, len(matrix)

    def dense(self) -> np.ndarray:
        return self.matrix

    def prefix(self, steps: int) -> Plain:
        return Plain(self.matrix[:steps, :steps])

    def describe(self) -> dict:
        return {"name": "plain", "steps": self.steps}


def test_a_late_pattern_can_be_the_worst_without_toeplitz_structure():
    """Two of the last two steps: sqrt(9 + 9). Patterns that start at once reach sqrt(1 + 9) only."""
    found = bg.certify(Plain(np.diag([1.0, 1, 1, 1, 1, 1, 3, 3])), bg.MinSeparation(8, 1, 2))
    assert found.value >= math.sqrt(18) * (1 - 1e-12), f"{found} is below the truth, sqrt(18) = 4.2426"
    assert not found.exact or found.value == pytest.approx(math.sqrt(18), rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("signed", [False, True])
def test_sensitivity_without_structure(seed, signed):
    rng = np.random.default_rng([17, seed])
    n = int(rng.integers(2, 9))
    c = np.tril(rng.uniform(-1 if signed else 0, 1, (n, n))) + np.eye(n) * (2 if signed else 1)
    c *= rng.uniform(0.3, 3, n)  # columns of very different weight: no pattern is special
    for law, patterns in laws(n, rng):
        found, (low, up) = bg.certify(Plain(c), law), dense.vector_truth(c, patterns)
        assert found.value >= low * (1 - 1e-12), f"{law}: {found} is below the truth {low}"
        assert not found.exact or found.value <= up * (1 + 1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_sensitivity_of_longer_mixed_sign_strategies(seed):
    rng = np.random.default_rng([9, seed])
    for inverse in (False, True):
        n, b, k = int(rng.integers(9, 14)), int(rng.integers(3, 6)), int(rng.integers(2, 5))
        x = np.array([1.0, *rng.uniform(-1, 1, 5)])
        make = bg.banded_inverse_toeplitz if inverse else bg.toeplitz
        c = dense.toeplitz(dense.inverse_coefficients(x, n) if inverse else x, n)
        found = bg.certify(make(x, n), bg.MinSeparation(n, b, k))
        low, up = dense.vector_truth(c, dense.separated_patterns(n, b, k))
        assert low * (1 - 1e-12) <= found.value
        assert not found.exact or found.value <= up * (1 + 1e-8)


def test_vectors_can_beat_every_choice_of_signs():
    """Where three contributions repel each other, vectors at 120 degrees beat signs; signs alone would be unsafe."""
    c = np.linalg.cholesky(np.array([[1.0, -0.4, -0.4], [-0.4, 1.0, -0.4], [-0.4, -0.4, 1.0]])).T
    from bluegrad._patterns import worst_contribution

    worst = worst_contribution(c.T @ c)
    assert worst.exact and worst.squared == pytest.approx(3 + 2 * 3 * 0.4 * 0.5, rel=1e-9)
    assert dense.sign_sensitivity(c, [(0, 1, 2)]) ** 2 < worst.squared - 0.2


def test_a_toeplitz_rule_is_not_used_where_coefficients_rise():
    rising = bg.toeplitz([1, 0.2, 0.2, 1, 0.1], 8)
    assert bg.sensitivity(rising, bg.MinSeparation(8, 2, 2)) == pytest.approx(2.493993, abs=1e-6)
    first_pattern = np.linalg.norm(rising.dense()[:, [0, 2]].sum(axis=1))
    assert first_pattern == pytest.approx(2.240536, abs=1e-6)  # what the rule would have said


@pytest.mark.parametrize(("n", "k", "lam"), [(64, 4, 0.9), (200, 10, 0.3), (96, 96, 0.5), (50, 1, 0.99)])
def test_lambda_cgd_closed_form(n, k, lam):
    b = n // k
    series = sum((1 - lam ** (b * (j + 1))) ** 2 for j in range(k))
    expected = (1 - lam ** (2 * b)) / ((1 - lam**2) * (1 - lam**b) ** 2) * series
    for law in (bg.FixedEpochs(n, k), bg.MinSeparation(n, b, k)):
        assert bg.sensitivity(bg.lambda_cgd(n, lam), law) ** 2 == pytest.approx(expected, rel=1e-12)
    frobenius = n + (1 - lam) ** 2 * n * (n - 1) / 2
    assert (bg.errors(bg.lambda_cgd(n, lam), bg.PrefixSum(n)) ** 2).sum() == pytest.approx(frobenius, rel=1e-12)


def test_published_optima():
    work, law = bg.PrefixSum(1000), bg.FixedEpochs(1000, 10)
    best = bg.optimize.lambda_cgd(work, law)
    assert best.parameters["lam"] == pytest.approx(0.953045, abs=2e-6)
    assert bg.rmse(best, work, law) == pytest.approx(15.2486, abs=1e-4)
    worst_step = bg.optimize.lambda_cgd(work, law, loss="max_error")
    assert worst_step.parameters["lam"] == pytest.approx(0.963386, abs=2e-6)
    assert bg.max_error(worst_step, work, law) == pytest.approx(18.4321, abs=1e-4)
    work, law = bg.PrefixSum(2000), bg.FixedEpochs(2000, 20)
    best = bg.optimize.lambda_cgd(work, law)
    assert (best.parameters["lam"], bg.rmse(best, work, law)) == pytest.approx((0.963157, 26.1021), abs=1e-4)
    worst_step = bg.optimize.lambda_cgd(work, law, loss="max_error")
    assert worst_step.parameters["lam"] == pytest.approx(0.970422, abs=2e-6)
    assert bg.max_error(worst_step, work, law) == pytest.approx(32.1961, abs=1e-4)
    best = bg.optimize.nu_dp_ftrl(work, law)
    assert best.parameters["nu"] == pytest.approx(0.0037, abs=1e-4)
    assert bg.rmse(best, work, law) == pytest.approx(22.293, abs=1e-3)
    work, law = bg.PrefixSum(2052), bg.FixedEpochs(2052, 6)
    best = bg.optimize.lambda_cgd(work, law)
    assert best.parameters["lam"] == pytest.approx(0.969244, abs=2e-6)
    assert bg.rmse(best, work, law) == pytest.approx(13.9704, abs=1e-4)


def test_a_published_banded_noise():
    """BandInvMF, 4 bands: its C isn't monotone, yet the exact rule finds the published error."""
    strategy = bg.banded_inverse_toeplitz([1, -0.42986, -0.13028, -0.37951], 1000)
    law = bg.FixedEpochs(1000, 10)
    assert bg.certify(strategy, law).exact
    assert bg.rmse(strategy, bg.PrefixSum(1000), law) == pytest.approx(13.1197, abs=2e-4)


def test_square_root_error_grows_with_the_logarithm():
    for n in (1000, 100_000):
        error = bg.max_error(bg.square_root(bg.PrefixSum(n)), bg.PrefixSum(n), bg.SinglePass(n))
        assert error == pytest.approx(math.log(n) / math.pi + 1.066276, abs=1e-3)
        assert error != pytest.approx(math.log(n) / math.pi + 1.066276, abs=1e-8)  # an asymptotic law, not equality


@pytest.mark.parametrize(("n", "k"), [(60, 1), (60, 6), (400, 20), (128, 128)])
def test_theorems_of_lambda_cgd(n, k):
    work, law = bg.PrefixSum(n), bg.FixedEpochs(n, k)
    by_rmse, by_max = (bg.optimize.lambda_cgd(work, law, loss=loss) for loss in ("rmse", "max_error"))
    assert by_max.parameters["lam"] >= by_rmse.parameters["lam"] - 1e-6
    assert bg.rmse(by_rmse, work, law) <= bg.rmse(bg.identity(n), work, law) * (1 + 1e-12)
    for lam in np.linspace(0, 0.999, 40):
        assert bg.rmse(by_rmse, work, law) <= bg.rmse(bg.lambda_cgd(n, lam), work, law) * (1 + 1e-9)
    if n == k:  # a batch of everything: nothing to gain
        assert by_rmse.parameters["lam"] == pytest.approx(0.0, abs=1e-6)


small = st.lists(st.floats(-1, 1), min_size=1, max_size=8).map(lambda x: [1.0, *x])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(coefficients=small, scale=st.floats(0.1, 10), k=st.integers(1, 4), data=st.data())
def test_scale_laws(coefficients, scale, k, data):
    n = k * data.draw(st.integers(-(-len(coefficients) // k), 12))
    law, work = bg.FixedEpochs(n, k), bg.PrefixSum(n)
    one, other = bg.toeplitz(coefficients, n), bg.toeplitz(scale * np.array(coefficients), n)
    assert bg.sensitivity(other, law) == pytest.approx(scale * bg.sensitivity(one, law), rel=1e-7)
    assert bg.rmse(other, work, law) == pytest.approx(bg.rmse(one, work, law), rel=1e-6)
    # noise coefficients scale C the other way round
    one, other = (bg.banded_inverse_toeplitz(s * np.array(coefficients), n) for s in (1.0, scale))
    assert bg.sensitivity(other, law) == pytest.approx(bg.sensitivity(one, law) / scale, rel=1e-6)
    assert bg.rmse(other, work, law) == pytest.approx(bg.rmse(one, work, law), rel=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(coefficients=small, b=st.integers(1, 9), k=st.integers(1, 5))
def test_more_separation_never_costs_and_more_times_never_gains(coefficients, b, k):
    n = 10
    strategy = bg.toeplitz(coefficients, n)
    here = bg.sensitivity(strategy, bg.MinSeparation(n, b, k))
    assert bg.sensitivity(strategy, bg.MinSeparation(n, b + 1, k)) <= here * (1 + 1e-7)
    assert bg.sensitivity(strategy, bg.MinSeparation(n, b, k + 1)) >= here * (1 - 1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_the_dynamic_program_finds_the_best_pattern(seed, monkeypatch):
    from bluegrad import _patterns

    rng = np.random.default_rng([23, seed])
    n, b, k = int(rng.integers(1, 12)), int(rng.integers(1, 6)), int(rng.integers(1, 8))
    values = rng.random((5, n))
    truth = [max(sum(row[i] for i in p) for p in dense.separated_patterns(n, b, k)) for row in values]
    found = _patterns.best_patterns(values, b, k)
    assert found == pytest.approx(truth, rel=1e-12)
    monkeypatch.setattr(_patterns, "_COUNTED", 0)  # where counting takes too long: never below
    more = _patterns.best_patterns(values, b, k)
    assert (more >= found * (1 - 1e-12)).all()
    assert more == pytest.approx(
        [max(sum(row[i] for i in p) for p in dense.separated_patterns(n, b, n)) for row in values]
    )


@pytest.mark.parametrize("make", [
    lambda n: bg.toeplitz([1.0, -0.3, 0.4], n), lambda n: bg.column_normalized(bg.toeplitz([1.0, -0.3, 0.4], n)),
    lambda n: bg.banded_inverse_toeplitz([1.0, 0.5], n), bg.fourier,
])  # fmt: skip
def test_too_many_participations_for_a_program_are_bounded(make):
    """Every step joined, 1,100 of them: no exact rule, yet never below what one contribution reaches."""
    n = 1100
    strategy = make(n)
    found = bg.certify(strategy, bg.FixedEpochs(n, n))
    c = strategy.dense()
    top = np.linalg.svd(c)[2][0]
    reached = max(np.linalg.norm(c @ signs) for signs in (np.ones(n), np.sign(top), (-1.0) ** np.arange(n)))
    assert found.value >= reached * (1 - 1e-12)
    assert found.value <= np.sqrt(n) * np.linalg.norm(c, 2) * (1 + 1e-9)  # the spectral bound, or better


def test_bounds_that_are_not_exact_are_still_above_the_truth():
    rng = np.random.default_rng(3)
    for _ in range(10):
        x = rng.standard_normal(6)
        x[0] = 2.0
        strategy, n = bg.toeplitz(x, 60), 60
        bound = bg.certify(strategy, bg.MinSeparation(n, 5, 12))
        assert not bound.exact
        # FixedEpochs patterns are among those of min-separation, and are solved exactly
        assert bound.value >= bg.certify(strategy, bg.FixedEpochs(n, 12)).value * (1 - 1e-12)


def test_poisson_is_for_independent_noise_only():
    assert bg.sensitivity(bg.identity(10), bg.Poisson(10, 0.1)) == 1.0
    with pytest.raises(bg.Unsupported, match=r"lambda_cgd.*Poisson"):
        bg.sensitivity(bg.lambda_cgd(10, 0.5), bg.Poisson(10, 0.1))


@pytest.mark.parametrize("name", ["identity", "lambda", "nu", "root", "banded", "inverse", "mixed", "lasting"])
def test_a_million_steps_take_a_few_arrays(name):
    n = 1_000_000
    make = {
        "identity": lambda: bg.identity(n),
        "lambda": lambda: bg.lambda_cgd(n, 0.99),
        "nu": lambda: bg.nu_dp_ftrl(n, 1e-4),
        "root": lambda: bg.square_root(bg.PrefixSum(n)),
        "banded": lambda: bg.toeplitz(root(16, +1), n),
        "inverse": lambda: bg.banded_inverse_toeplitz(root(16, -1), n),
        "mixed": lambda: bg.banded_inverse_toeplitz([1, -0.43, -0.13, -0.38], n),
        # C that is still about 2/3 at the last step: what is lost on the way shows
        "lasting": lambda: bg.banded_inverse_toeplitz([1, -0.5, -0.4999999], n),
    }[name]
    tracemalloc.start()
    strategy = make()
    values = [bg.sensitivity(strategy, law) for law in (bg.FixedEpochs(n, 20), bg.MinSeparation(n, n // 20, 20))]
    error = bg.rmse(strategy, bg.PrefixSum(n), bg.SinglePass(n))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * 8 * n
    assert values[1] >= values[0] * (1 - 1e-12) > 0
    if name in ("banded", "inverse", "mixed", "lasting"):
        # the same series by a recursive filter, sample by sample
        x = {
            "banded": root(16, +1), "inverse": root(16, -1),
            "mixed": [1, -0.43, -0.13, -0.38], "lasting": [1, -0.5, -0.4999999],
        }[name]  # fmt: skip
        recursive = lfilter([1.0], x, np.eye(1, n)[0])
        c, noise = (x, recursive) if name == "banded" else (recursive, np.pad(x, (0, n - len(x))))
        single = float(np.linalg.norm(c))
        assert bg.sensitivity(strategy, bg.SinglePass(n)) == pytest.approx(single, rel=1e-9)
        rows = np.cumsum(np.cumsum(np.pad(noise, (0, n - len(noise)))) ** 2)
        assert error == pytest.approx(single * math.sqrt(rows.mean()), rel=1e-9)
    if name == "identity":
        assert values == pytest.approx([math.sqrt(20)] * 2, rel=1e-12)
        assert error == pytest.approx(math.sqrt((n + 1) / 2), rel=1e-12)
    if name == "lambda":
        blocks = sum((1 - 0.99 ** (n // 20 * (j + 1))) ** 2 for j in range(20)) / (1 - 0.99 ** (n // 20)) ** 2
        assert values == pytest.approx([math.sqrt(blocks / (1 - 0.99**2))] * 2, rel=1e-9)
        assert error == pytest.approx(math.sqrt((n + 1e-4 * n * (n - 1) / 2) / n / (1 - 0.99**2)), rel=1e-9)


@pytest.mark.parametrize("length", [1, 7, 63, 64, 65, 300, 5000])
@pytest.mark.parametrize("bands", [1, 2, 5, 63, 64, 65, 255, 256, 257, 2000])
def test_series_inverse_and_product_equal_the_slow_ones(length, bands):
    from bluegrad import _series

    rng = np.random.default_rng(length * bands)
    x = rng.standard_normal(bands) * 0.7 ** np.arange(bands)
    x[0] = 2.0
    inverse = _series.inverse(x, length)
    slow = np.zeros(length)
    slow[0] = 0.5
    for t in range(1, length):
        reach = min(t, bands - 1)
        slow[t] = -(x[1 : reach + 1] @ slow[t - reach : t][::-1]) / 2.0 if reach else 0.0
    assert inverse == pytest.approx(slow, abs=1e-13 * np.abs(slow).max())
    product = _series.multiply(x, inverse, length)
    rounding = 1e-14 * (np.abs(x).sum() * np.abs(inverse).max())
    assert product == pytest.approx(np.convolve(x, inverse)[:length], abs=rounding)
    assert product == pytest.approx(np.eye(1, length)[0], abs=10 * rounding)


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_square_root_is_the_root_of_the_prefix_sum(n):
    exact = dense.square_root_coefficients(np.ones(n), n)
    assert bg.square_root(bg.PrefixSum(n)).dense() == pytest.approx(dense.toeplitz(exact, n), rel=1e-13, abs=0)
    damped = dense.square_root_coefficients(0.9 ** np.arange(n), n)
    assert bg.nu_dp_ftrl(n, 0.1).dense() == pytest.approx(dense.toeplitz(damped, n), rel=1e-12, abs=0)
    assert (bg.PrefixSum(n).dense() == np.tri(n)).all()
