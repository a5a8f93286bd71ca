"""Best buffered linear Toeplitz strategies against published optima, brute force and dense sums."""

from __future__ import annotations

import numpy as np
import pytest

import bluegrad as bg
from bluegrad.optimize import _doubling, _recursion, buffers
from bluegrad.optimize._problem import POWERS, pose
from oracles import dense, gradients

LOSSES = {"rmse": bg.rmse, "max_error": bg.max_error}


def momentum(n: int, schedule: bool = False, coupled: bool = False) -> bg.Sgd:
    rates = np.linspace(1.0, 0.1, n) if schedule else None
    return bg.Sgd(n, momentum=0.9, weight_decay=0.01, learning_rates=rates, coupled=coupled)


@pytest.mark.parametrize(
    ("n", "k", "expected"),
    [
        (1000, 10, {1: 12.4494, 2: 12.1939}),
        (2000, 20, {1: 21.7456, 2: 21.3740}),
        (2052, 6, {1: 9.8455, 2: 9.1828, 4: 9.1713}),
    ],
)
def test_reference_rmse(n, k, expected):
    work = bg.PrefixSum(n)
    for count, value in expected.items():
        laws = [bg.FixedEpochs(n, k)] + [bg.MinSeparation(n, n // k, k)] * (count == 1)
        for law in laws:
            best = bg.optimize.buffered_toeplitz(work, law, count)
            assert best.optimization.value == bg.rmse(best, work, law) and best.optimization.converged
            assert best.optimization.value == pytest.approx(value, abs=6e-5)
            assert bg.certify(best, law).exact and best.memory <= count


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (10_000, {5: 3.99872}),
        (100_000, {2: 5.29675, 4: 4.75768}),
        pytest.param(10_000, {1: 5.58937, 2: 4.21585, 3: 4.03325, 4: 4.00312}, marks=pytest.mark.slow),
        pytest.param(100_000, {1: 8.15592, 3: 4.85347, 5: 4.73641}, marks=pytest.mark.slow),
    ],
)
def test_reference_max_error(n, expected):
    work, law = bg.PrefixSum(n), bg.SinglePass(n)
    for count, value in expected.items():
        best = bg.optimize.buffered_toeplitz(work, law, count, loss="max_error")
        assert best.optimization.value == bg.max_error(best, work, law) <= value + 6e-6
        assert best.optimization.value == pytest.approx(value, abs=6e-6) and best.memory == count


@pytest.mark.parametrize("terms", [0, 1, 2, 5, 1000])
def test_geometric_sums(terms):
    z = np.array([0.0, 1e-9, 0.3, 0.9, 1.0 - 1e-9])
    value, slope = _doubling.geometric(z, terms)
    powers = z[:, None] ** np.arange(terms)
    assert value == pytest.approx(powers.sum(axis=1), rel=1e-12)
    r = np.arange(1, terms)
    assert slope == pytest.approx((r * z[:, None] ** (r - 1)).sum(axis=1), rel=1e-12)


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3, 6, 41])
def test_energy_by_doubling(steps, running):
    rng = np.random.default_rng(steps)
    f, g, h = rng.standard_normal((3, 3)) / 3, rng.standard_normal(3), rng.standard_normal(3)

    def naive(x):
        transition, state, output = x[:9].reshape(3, 3), x[9:12], x[12:]
        total = 0.0
        for t in range(steps):
            b = output @ state
            total += ((steps - t) if running else 1.0) * b * b
            state = transition @ state
        return total

    x = np.concatenate([f.reshape(-1), g, h])
    found = _doubling.energy(f, g, h, steps, running=running)
    assert found.value == pytest.approx(naive(x), rel=1e-12)
    gradient = np.concatenate([found.in_transition.reshape(-1), found.in_input, found.in_output])
    assert gradient == pytest.approx(gradients.complex_step(naive, x), rel=1e-10, abs=1e-10)


LAWS = [
    bg.SinglePass(24), bg.FixedEpochs(24, 4), bg.FixedEpochs(24, 24), bg.MinSeparation(24, 5, 3),
    bg.MinSeparation(24, 7, 9), bg.MinSeparation(24, 1, 3),
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_sensitivity_and_gradient(law):
    n = law.steps
    problem = pose(bg.PrefixSum(n), law, "rmse", None)
    k = min(law.times, -(-n // law.separation))
    x = np.array([0.5, 0.9, 0.999, 0.3, 0.2, 0.1])

    def naive(x):
        q, w = x[:3], x[3:]
        c = np.concatenate([[1.0 + 0j], (w * q ** np.arange(n - 1)[:, None]).sum(axis=1)])
        return gradients.first_pattern(gradients.lower_toeplitz(c, n), law.separation, k)

    value, in_q, in_w = buffers.squared_sensitivity(problem, x[:3], x[3:])
    assert value == pytest.approx(naive(x).real, rel=1e-12)
    assert value == pytest.approx(bg.sensitivity(bg.buffered_toeplitz(n, x[:3], x[3:]), law) ** 2, rel=1e-12)
    assert np.concatenate([in_q, in_w]) == pytest.approx(gradients.complex_step(naive, x), rel=1e-9)


@pytest.mark.parametrize(
    "work", [bg.PrefixSum(24), momentum(24), momentum(24, True), momentum(24, True, True)], ids=repr
)
@pytest.mark.parametrize("loss", ["rmse", "max_error"])
def test_error_and_gradient(work, loss):
    n, a = work.steps, work.dense()
    x = np.array([0.5, 0.9, 0.99, 0.3, 0.2, 0.1])
    for power, log_error in zip(POWERS[loss], _recursion.errors(work, POWERS[loss])):

        def naive(x, power=power):
            q, w = x[:3], x[3:]
            c = np.concatenate([[1.0 + 0j], (w * q ** np.arange(n - 1)[:, None]).sum(axis=1)])
            rows = gradients.row_variances(a, gradients.lower_toeplitz(c, n))
            if work.coefficients() is not None or loss == "rmse":
                return np.log(rows.mean() if loss == "rmse" else rows[-1])
            top = rows.real.max()
            return np.log(top) + np.log(((rows / top) ** power).sum()) / power

        value, in_q, in_w = log_error(x[:3], x[3:])
        assert value == pytest.approx(naive(x).real, rel=1e-10)
        assert np.concatenate([in_q, in_w]) == pytest.approx(gradients.complex_step(naive, x), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("law", [bg.SinglePass(8), bg.FixedEpochs(8, 2), bg.FixedEpochs(8, 4),
                                 bg.MinSeparation(8, 3, 2), bg.MinSeparation(8, 2, 9)], ids=repr)  # fmt: skip
def test_the_sensitivity_is_the_truth(law):
    for work in (bg.PrefixSum(8), momentum(8)):
        best = bg.optimize.buffered_toeplitz(work, law, 2)
        patterns = dense.separated_patterns(8, law.separation, law.times)
        if isinstance(law, bg.FixedEpochs):
            patterns = dense.fixed_patterns(8, law.epochs)
        low, up = dense.vector_truth(best.dense(), patterns)
        assert low * (1 - 1e-9) <= bg.sensitivity(best, law) <= up * (1 + 1e-9)
        assert not isinstance(law, bg.MinSeparation) or (np.diff(best.coefficients()) <= 0.0).all()


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("loss", ["rmse", "max_error"])
def test_no_neighbour_is_better_and_more_buffers_are_never_worse(schedule, loss):
    n = 40
    law, work, score = bg.FixedEpochs(n, 5), momentum(n, schedule), LOSSES[loss]
    slack = 1.01 if schedule and loss == "max_error" else 1.0 + 1e-8
    rng, before = np.random.default_rng(0), np.inf
    for count in (1, 2, 3):
        best = bg.optimize.buffered_toeplitz(work, law, count, loss=loss)
        assert best.optimization.value == score(best, work, law) <= before * slack
        before = best.optimization.value
        for size in (1e-1, 1e-2, 1e-3):
            for _ in range(10):
                rates = (1.0 - best.decays) * np.exp(size * rng.standard_normal(len(best.decays)))
                scales = best.scales * np.exp(size * rng.standard_normal(len(rates)))
                near = bg.buffered_toeplitz(n, np.maximum(1.0 - rates, 0.0), scales)
                assert score(near, work, law) * slack >= before


def test_one_buffer_holds_lambda_cgd():
    n = 200
    for work in (bg.PrefixSum(n), momentum(n)):
        for law in (bg.SinglePass(n), bg.FixedEpochs(n, 10), bg.MinSeparation(n, 20, 10)):
            best = bg.optimize.buffered_toeplitz(work, law, 1).optimization.value
            assert best <= bg.optimize.lambda_cgd(work, law).optimization.value


def test_edges():
    for n in (1, 2):
        best = bg.optimize.buffered_toeplitz(bg.PrefixSum(n), bg.SinglePass(n), 1)
        assert best.optimization.value == bg.rmse(best, bg.PrefixSum(n), bg.SinglePass(n))
    law = bg.FixedEpochs(30, 30)  # independent noise is best
    best = bg.optimize.buffered_toeplitz(bg.PrefixSum(30), law, 2)
    assert best.optimization.value == pytest.approx(bg.rmse(bg.identity(30), bg.PrefixSum(30), law), rel=1e-3)


def test_it_is_the_same_every_time_and_reports_progress():
    seen: list[float] = []
    law, work = bg.FixedEpochs(200, 10), bg.PrefixSum(200)
    one = bg.optimize.buffered_toeplitz(work, law, 2, progress=lambda _, v: seen.append(v))
    two = bg.optimize.buffered_toeplitz(work, law, 2)
    assert (one.decays == two.decays).all() and (one.scales == two.scales).all()
    assert min(seen) == pytest.approx(one.optimization.value, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"buffers": 0}, ["buffers=0", "at least 1"]),
        ({"buffers": 11}, ["buffers=11", "at most 10"]),
        ({"loss": "mae"}, ["loss='mae'", "rmse, max_error"]),
        ({"workload": bg.PrefixSum(11)}, ["participation.steps=12", "11"]),
        ({"workload": bg.workload.DenseWorkload(np.tri(12))}, ["DenseWorkload", "PrefixSum"]),
        ({"participation": bg.Poisson(12, 0.1)}, ["Poisson", "SinglePass"]),
    ],
)
def test_bad_arguments_are_named(change, words):
    given = {"workload": bg.PrefixSum(12), "participation": bg.FixedEpochs(12, 3), "buffers": 2, **change}
    with pytest.raises(ValueError) as caught:
        bg.optimize.buffered_toeplitz(**given)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.slow
def test_a_long_horizon_is_quick():
    n = 1_000_000
    for law in (bg.SinglePass(n), bg.FixedEpochs(n, 20)):
        best = bg.optimize.buffered_toeplitz(bg.PrefixSum(n), law, 4)
        assert best.optimization.converged and best.optimization.seconds < 10.0
