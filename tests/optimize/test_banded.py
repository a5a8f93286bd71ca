"""Best column-normalised banded strategies against published optima, brute force and dense gradients."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg
from bluegrad.optimize import _blocks, _problem, columns
from oracles import dense, gradients

LOSSES = {"rmse": bg.rmse, "max_error": bg.max_error}


def momentum(n: int, schedule: bool = False, coupled: bool = False) -> bg.Sgd:
    rates = np.linspace(1.0, 0.1, n) if schedule else None
    return bg.Sgd(n, momentum=0.9, weight_decay=0.01, learning_rates=rates, coupled=coupled)


def uneven(n: int) -> bg.workload.DenseWorkload:
    noise = 0.1 * np.sin(np.arange(n * n)).reshape(n, n)
    return bg.workload.DenseWorkload(np.tri(n) * (1.0 + noise) + np.diag(np.arange(n)))


@pytest.mark.parametrize(
    ("n", "bands", "expected"),
    [
        (512, 16, 4.699375),  # a public optimiser stalls at 4.902
        (64, 64, 2.0998565),  # all bands: the certified optimum over every matrix
        pytest.param(256, 256, 2.5244144, marks=pytest.mark.slow),
    ],
)
def test_reference_values(n, bands, expected):
    work, law = bg.PrefixSum(n), bg.SinglePass(n)
    best = bg.optimize.banded(work, law, bands)
    assert best.optimization.value == bg.rmse(best, work, law) and best.optimization.converged
    assert best.optimization.value == pytest.approx(expected, rel=2e-6)


@pytest.mark.slow
def test_reference_value_of_many_bands():
    work, law = bg.PrefixSum(2000), bg.FixedEpochs(2000, 20)
    best = bg.optimize.banded(work, law, 100)
    assert best.optimization.value <= 19.8821 and best.optimization.converged  # column-normalised BandMF: 20.17


WORKLOADS = {
    "prefix": bg.PrefixSum,
    "momentum": momentum,
    "schedule": lambda n: momentum(n, True),
    "coupled": lambda n: momentum(n, True, True),
    "dense": uneven,
}


@pytest.mark.parametrize("name", list(WORKLOADS))
@pytest.mark.parametrize(("n", "bands"), [(1, 1), (5, 5), (40, 3), (33, 7), (70, 40)])
def test_variances_and_gradient(name, n, bands):
    work, rng = WORKLOADS[name](n), np.random.default_rng(n)
    given = rng.standard_normal((n, bands)) * 0.3 / np.arange(1, bands + 1)
    given[:, 0] = 1.0 + rng.random(n)
    given *= np.arange(n)[:, None] + np.arange(bands) < n
    a, c, weights = work.dense(), gradients.lower_banded(given), rng.random(n)
    blocked = _blocks.BlockedVariances(work, bands)
    forward = blocked.forward(given)
    assert forward.variances == pytest.approx(gradients.row_variances(a, c), rel=1e-9)
    inverse = np.linalg.inv(c)
    b = a @ inverse
    full = -2.0 * b.T @ (weights[:, None] * b) @ inverse.T
    expected = np.array([[full[j + i, j] if j + i < n else 0.0 for i in range(bands)] for j in range(n)])
    found = blocked.backward(forward, weights)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-8 * np.abs(expected).max())


def test_bands_of_the_inverse():
    for name, count in (("prefix", 2), ("momentum", 3), ("schedule", 3), ("coupled", 3), ("dense", 20)):
        work = WORKLOADS[name](20)
        bands = _blocks.inverse_bands(work)
        assert bands.shape == (20, count)
        assert work.dense() @ gradients.lower_banded(bands) == pytest.approx(np.eye(20), abs=1e-9)
        x = np.cos(np.arange(20.0))
        assert _blocks.banded_product(bands, x) == pytest.approx(gradients.lower_banded(bands) @ x, abs=1e-12)


@pytest.mark.parametrize("power", [1.0, 8.0, 512.0])
def test_row_loss(power):
    rows = np.array([0.5, 2.0, 1.9, 1.0])
    value, gradient = _problem.row_loss(rows, power)

    def naive(x):
        return np.log(x.mean()) if power == 1.0 else np.log(2.0) + np.log(((x / 2.0) ** power).sum()) / power

    assert value == pytest.approx(naive(rows), rel=1e-13)
    assert gradient == pytest.approx(gradients.complex_step(naive, rows), rel=1e-10, abs=1e-30)
    assert _problem.row_loss(np.array([1.0, np.inf]), power)[0] == np.inf


@pytest.mark.parametrize("law", [bg.SinglePass(8), bg.FixedEpochs(8, 2), bg.FixedEpochs(8, 4),
                                 bg.MinSeparation(8, 3, 2), bg.MinSeparation(8, 3, 9)], ids=repr)  # fmt: skip
@pytest.mark.parametrize("name", ["prefix", "schedule", "dense"])
def test_the_sensitivity_is_the_truth(law, name):
    work = WORKLOADS[name](8)
    most = min(law.separation, 8)
    values = []
    for bands in range(1, most + 1):
        best = bg.optimize.banded(work, law, bands)
        patterns = dense.separated_patterns(8, law.separation, law.times)
        if isinstance(law, bg.FixedEpochs):
            patterns = dense.fixed_patterns(8, law.epochs)
        low, up = dense.vector_truth(best.dense(), patterns)
        assert low * (1 - 1e-9) <= bg.sensitivity(best, law) <= up * (1 + 1e-9)
        assert best.column_norms() == pytest.approx(np.ones(8), rel=1e-12)
        rmse = up * np.sqrt(gradients.row_variances(work.dense(), best.dense()).mean())
        assert best.optimization.value == pytest.approx(rmse, rel=1e-9)
        normalized = bg.column_normalized(bg.optimize.toeplitz(work, law, bands))
        assert best.optimization.value <= bg.rmse(normalized, work, law) * (1 + 1e-9)
        values.append(best.optimization.value)
    assert (np.diff(values) <= 1e-7).all(), "more bands are never worse"


def test_it_beats_the_toeplitz_strategy_of_as_many_bands():
    n = 100
    for work in (bg.PrefixSum(n), momentum(n), momentum(n, True)):
        for law in (bg.SinglePass(n), bg.FixedEpochs(n, 10), bg.MinSeparation(n, 8, 10)):
            best = bg.optimize.banded(work, law, 8)
            assert best.optimization.value < bg.optimize.toeplitz(work, law, 8).optimization.value


@pytest.mark.parametrize("name", ["prefix", "schedule"])
def test_the_largest_error_is_the_least(name):
    n = 30
    work, law = WORKLOADS[name](n), bg.FixedEpochs(n, 5)
    best = bg.optimize.banded(work, law, 4, loss="max_error")
    assert best.optimization.value == bg.max_error(best, work, law)
    rmse = bg.optimize.banded(work, law, 4)
    assert best.optimization.value < bg.max_error(rmse, work, law)
    # weak duality: for any weights on the rows the least weighted error is below the least largest error
    problem = columns.pose(work, law, "max_error", None)
    blocked = _blocks.BlockedVariances(work, 4)
    variances = bg.errors(best, work) ** 2
    weights = (variances / variances.max()) ** 4096
    weights /= weights.sum()
    free = np.arange(n)[:, None] + np.arange(4) < n
    free[:, 0] = False

    def weighted(x):
        given, norms = columns._columns(free, x)
        forward = blocked.forward(given)
        total = float(weights @ forward.variances)
        gradient = blocked.backward(forward, weights) / total
        gradient -= given * (gradient * given).sum(axis=1, keepdims=True)
        return np.log(total), (gradient / norms)[free]

    start = (best.columns / best.columns[:, :1])[free]
    bound = np.sqrt(5.0 * np.exp(columns.descend(weighted, start).value))
    assert problem.value(best) == pytest.approx(bound, rel=3e-3) and problem.value(best) >= bound * (1 - 1e-6)


def test_it_is_the_same_every_time_and_reports_progress():
    seen: list[float] = []
    law, work = bg.FixedEpochs(100, 10), bg.PrefixSum(100)
    one = bg.optimize.banded(work, law, 6, progress=lambda _, v: seen.append(v))
    two = bg.optimize.banded(work, law, 6)
    assert (one.columns == two.columns).all()
    assert seen[-1] == pytest.approx(one.optimization.value, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bands": 0}, ["bands=0", "at least 1"]),
        ({"bands": 5}, ["bands=5", "separation=4"]),
        ({"bands": 13, "participation": bg.SinglePass(12)}, ["bands=13", "steps=12"]),
        ({"loss": "mae"}, ["loss='mae'", "rmse, max_error"]),
        ({"workload": bg.PrefixSum(11)}, ["participation.steps=12", "11"]),
        ({"participation": bg.Poisson(12, 0.1)}, ["Poisson", "SinglePass"]),
    ],
)
def test_bad_arguments_are_named(change, words):
    given = {"workload": bg.PrefixSum(12), "participation": bg.FixedEpochs(12, 3), "bands": 3, **change}
    with pytest.raises(ValueError) as caught:
        bg.optimize.banded(**given)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seconds"), [(2048, 10.0), (100_000, 300.0)])
def test_long_horizons_are_quick(n, seconds):
    best = bg.optimize.banded(bg.PrefixSum(n), bg.SinglePass(n), 16)
    assert best.optimization.converged and best.optimization.seconds < seconds
