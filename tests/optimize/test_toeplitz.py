"""Best banded Toeplitz strategies against published optima, brute force and dense gradients."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg
from bluegrad.optimize import series
from oracles import dense, gradients


def momentum(n: int, schedule: bool) -> bg.Sgd:
    rates = np.linspace(1.0, 0.1, n) if schedule else None
    return bg.Sgd(n, momentum=0.9, weight_decay=0.01, learning_rates=rates)


@pytest.mark.parametrize(
    ("law", "bands", "expected"),
    [
        (bg.SinglePass(64), 64, 2.179043),
        (bg.SinglePass(256), 256, 2.616450),
        (bg.SinglePass(1024), 1024, 3.056588),
        (bg.SinglePass(4096), 4096, 3.497535),
        (bg.FixedEpochs(2000, 20), 100, 20.2067),
        (bg.FixedEpochs(2052, 6), 342, 8.8041),
        (bg.MinSeparation(2000, 100, 20), 100, 20.2067),
    ],
)
def test_reference_values(law, bands, expected):
    work = bg.PrefixSum(law.steps)
    best = bg.optimize.toeplitz(work, law, bands)
    record = best.optimization
    assert record.value == bg.rmse(best, work, law) and record.converged and record.loss == "rmse"
    digits = len(str(expected).split(".")[1])
    assert record.value == pytest.approx(expected, abs=0.6 * 10.0**-digits)


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("loss", ["rmse", "max_error"])
@pytest.mark.parametrize("bands", [1, 4, 12])
def test_nothing_near_it_is_better(schedule, loss, bands):
    n = 40
    law, work = bg.FixedEpochs(n, 5), momentum(n, schedule)
    best = bg.optimize.toeplitz(work, law, bands, loss=loss)
    score = {"rmse": bg.rmse, "max_error": bg.max_error}[loss]
    assert best.optimization.value == score(best, work, law)
    # a smoothed maximum is off by n^(1/512) at most
    slack = 1.01 if schedule and loss == "max_error" else 1.0 + 1e-9
    rng = np.random.default_rng(0)
    c = best.coefficients()
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(20):
            near = bg.toeplitz(np.abs(c * (1.0 + size * rng.standard_normal(len(c)))), n)
            assert score(near, work, law) * slack >= best.optimization.value


@pytest.mark.parametrize("loss", ["rmse", "max_error"])
@pytest.mark.parametrize("bands", [1, 3, 70, 300])
def test_gradient_of_the_error(loss, bands):
    n, rng = bands + 10, np.random.default_rng(bands)
    for work in (bg.PrefixSum(n), momentum(n, False)) if bands < 100 else (momentum(n, False),):
        c = np.concatenate([[1.3], 0.5 * rng.random(bands - 1) / np.arange(1, bands)])
        weights = (n - np.arange(n)) / n if loss == "rmse" else np.ones(n)
        value, gradient = series._series_error(work.coefficients(), weights, c)
        a, some = work.dense(), np.unique(np.linspace(0, bands - 1, 4).astype(int))

        def dense_loss(x, a=a, c=c, some=some):
            full = c.astype(complex)
            full[some] = x
            return gradients.log_squared(a, gradients.lower_toeplitz(full, n), loss)

        assert value == pytest.approx(dense_loss(c[some]).real, rel=1e-10)
        expected = gradients.complex_step(dense_loss, c[some])
        assert gradient[some] == pytest.approx(expected, rel=1e-7, abs=1e-9)


@pytest.mark.parametrize(
    ("law", "bounded"),
    [
        (bg.FixedEpochs(24, 4), series._non_negative),
        (bg.MinSeparation(24, 5, 3), series._non_increasing),
        (bg.MinSeparation(24, 5, 9), series._non_increasing),
        (bg.MinSeparation(24, 10, 3), series._any_sign),
    ],
)
def test_gradient_of_the_objective(law, bounded):
    n, bands = law.steps, 10
    work = momentum(n, False)
    problem = series.pose(work, law, "rmse", None)
    (log_error,) = series._log_errors(problem, bands)
    function, enter, leave = bounded(problem, log_error)
    c = 0.8 ** np.arange(bands) if bounded is not series._any_sign else (-0.5) ** np.arange(bands)
    x = enter(c)
    assert leave(x) == pytest.approx(c, abs=1e-3)
    value, gradient = function(x)
    best = bg.toeplitz(leave(x), n)
    assert value == pytest.approx(2.0 * np.log(bg.rmse(best, work, law)), rel=1e-9)
    for j in range(len(x)):
        step = np.zeros(len(x))
        step[j] = 1e-6
        central = (function(x + step)[0] - function(x - step)[0]) / 2e-6
        assert gradient[j] == pytest.approx(central, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("law", [bg.SinglePass(8), bg.FixedEpochs(8, 2), bg.FixedEpochs(8, 4),
                                 bg.MinSeparation(8, 3, 2), bg.MinSeparation(8, 2, 9)], ids=repr)  # fmt: skip
def test_the_sensitivity_is_the_truth(law):
    for work in (bg.PrefixSum(8), momentum(8, True)):
        before = np.inf
        for bands in range(1, 9):
            best = bg.optimize.toeplitz(work, law, bands)
            patterns = dense.separated_patterns(8, law.separation, law.times)
            if isinstance(law, bg.FixedEpochs):
                patterns = dense.fixed_patterns(8, law.epochs)
            low, up = dense.vector_truth(best.dense(), patterns)
            assert low * (1 - 1e-9) <= bg.sensitivity(best, law) <= up * (1 + 1e-9)
            a, c = work.dense(), best.dense()
            rmse = up * np.sqrt(gradients.row_variances(a, c).mean())
            assert best.optimization.value == pytest.approx(rmse, rel=1e-8)
            assert best.optimization.value <= before * (1 + 1e-9), "more bands are never worse"
            before = best.optimization.value


@pytest.mark.parametrize("loss", ["rmse", "max_error"])
def test_at_least_as_good_as_what_the_family_holds(loss):
    n, bands = 300, 12
    score = {"rmse": bg.rmse, "max_error": bg.max_error}[loss]
    for work in (bg.PrefixSum(n), momentum(n, False)):
        for law in (bg.SinglePass(n), bg.FixedEpochs(n, 10), bg.FixedEpochs(n, 50), bg.MinSeparation(n, 7, 20)):
            best = bg.optimize.toeplitz(work, law, bands, loss=loss)
            assert best.optimization.value <= score(bg.banded_square_root(work, bands), work, law)
            assert best.optimization.value <= score(bg.identity(n), work, law)


def test_a_schedule_of_constant_rates_is_no_schedule():
    n, law = 60, bg.FixedEpochs(60, 4)
    almost = bg.Sgd(n, momentum=0.9, weight_decay=0.01, learning_rates=np.r_[1.0 + 1e-13, np.ones(n - 1)])
    assert almost.coefficients() is None
    for loss, rel in (("rmse", 1e-9), ("max_error", 1e-3)):
        values = [bg.optimize.toeplitz(w, law, 8, loss=loss).optimization.value for w in (momentum(n, False), almost)]
        assert values[1] == pytest.approx(values[0], rel=rel)


def test_a_dense_workload():
    a = np.tri(30) * np.linspace(1.0, 2.0, 30)
    work, law = bg.workload.DenseWorkload(a), bg.FixedEpochs(30, 3)
    best = bg.optimize.toeplitz(work, law, 5)
    assert best.optimization.converged
    assert best.optimization.value <= bg.rmse(bg.banded_square_root(bg.PrefixSum(30), 5), work, law)


def test_it_is_the_same_every_time_and_reports_progress():
    seen: list[tuple[int, float]] = []
    law, work = bg.FixedEpochs(200, 10), bg.PrefixSum(200)
    one = bg.optimize.toeplitz(work, law, 15, progress=lambda i, v: seen.append((i, v)))
    two = bg.optimize.toeplitz(work, law, 15)
    assert (one.coefficients() == two.coefficients()).all()
    assert seen[0][0] == 0 and seen[-1][1] == pytest.approx(one.optimization.value, rel=1e-9)
    assert one.optimization.iterations == len(seen) - 1 and one.optimization.seconds > 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bands": 0}, ["bands=0", "at least 1"]),
        ({"bands": 13}, ["bands=13", "steps=12"]),
        ({"bands": 2.0}, ["bands=2.0", "integer"]),
        ({"loss": "mae"}, ["loss='mae'", "rmse, max_error"]),
        ({"workload": 12}, ["workload=12", "PrefixSum"]),
        ({"workload": bg.PrefixSum(11)}, ["participation.steps=12", "11"]),
        ({"participation": bg.Poisson(12, 0.1)}, ["Poisson", "SinglePass"]),
    ],
)
def test_bad_arguments_are_named(change, words):
    given = {"workload": bg.PrefixSum(12), "participation": bg.FixedEpochs(12, 3), "bands": 3, **change}
    with pytest.raises(ValueError) as caught:
        bg.optimize.toeplitz(**given)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seconds"), [(65_536, 5.0), (1_000_000, 60.0)])
def test_long_horizons_are_quick(n, seconds):
    best = bg.optimize.toeplitz(bg.PrefixSum(n), bg.SinglePass(n), 16)
    assert best.optimization.converged and best.optimization.seconds < seconds
