"""Workloads against the optimizer they describe, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bluegrad as bg
from bluegrad.workload import Workload
from oracles import dense


def simulated(n: int, momentum: float, decay: float, rates: np.ndarray) -> np.ndarray:
    """Row t: theta_t as a function of the gradients, by running the recursion on unit gradients."""
    out = np.zeros((n, n))
    for j in range(n):
        m = theta = 0.0
        for t in range(n):
            m = momentum * m + (t == j)
            theta = (1 - decay) * theta + rates[t] * m
            out[t, j] = theta
    return out


RATES = {
    "none": lambda n: None,
    "constant": lambda n: np.full(n, 0.3),
    "cool-down": lambda n: np.linspace(1, 0.05, n),
    "cosine": lambda n: 0.6 + 0.4 * np.cos(np.linspace(0, 3, n)),
}


@pytest.mark.parametrize("schedule", RATES)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.95, 0.01)])
def test_sgd_is_its_recursion_and_errors_are_dense_ones(schedule, momentum, decay):
    n = 23
    rates = RATES[schedule](n)
    a = simulated(n, momentum, decay, np.ones(n) if rates is None else rates)
    work = bg.Sgd(n, momentum=momentum, weight_decay=decay, learning_rates=rates)
    assert work.dense() == pytest.approx(a, abs=1e-12)
    for strategy in (bg.identity(n), bg.lambda_cgd(n, 0.8), bg.nu_dp_ftrl(n, 0.1), bg.toeplitz([1, 0.6, 0.2], n)):
        expected = np.linalg.norm(a @ np.linalg.inv(strategy.dense()), axis=1)
        assert bg.errors(strategy, work) == pytest.approx(expected, rel=1e-10)


def test_sgd_without_options_is_the_prefix_sum():
    assert bg.Sgd(9).dense() == pytest.approx(np.tri(9), abs=0)


def test_momentum_is_torchs():
    n, momentum = 6, 0.7
    for j in range(n):
        theta = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([theta], lr=1.0, momentum=momentum)
        path = []
        for t in range(n):
            theta.grad = torch.tensor([float(t == j)])
            optimizer.step()
            path.append(-theta.item())
        assert bg.Sgd(n, momentum=momentum).dense()[:, j] == pytest.approx(path, rel=1e-6)


@pytest.mark.parametrize("schedule", RATES)
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.95, 0.05)])
def test_coupled_decay_is_torchs(schedule, momentum, decay):
    n = 9
    rates = RATES[schedule](n)
    a = np.zeros((n, n))
    for j in range(n):
        theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([theta], lr=1.0, momentum=momentum, weight_decay=decay)
        for t in range(n):
            optimizer.param_groups[0]["lr"] = 1.0 if rates is None else float(rates[t])
            theta.grad = torch.tensor([float(t == j)], dtype=torch.float64)
            optimizer.step()
            a[t, j] = -theta.item()
    work = bg.Sgd(n, momentum=momentum, weight_decay=decay, learning_rates=rates, coupled=True)
    assert work.dense() == pytest.approx(a, abs=1e-12)


def workloads(n: int) -> list[Workload]:
    rng = np.random.default_rng(n)
    rates = rng.uniform(0.1, 2.0, n)
    lower = np.tril(rng.standard_normal((n, n)))
    lower[np.diag_indices(n)] = rng.uniform(0.5, 2.0, n)
    return [
        bg.PrefixSum(n),
        bg.Sgd(n, momentum=0.9, weight_decay=0.1),
        bg.Sgd(n, momentum=0.9, weight_decay=0.1, learning_rates=rates),
        bg.Sgd(n, momentum=0.9, weight_decay=0.1, coupled=True),
        bg.Sgd(n, momentum=0.9, weight_decay=0.3, coupled=True, learning_rates=np.full(n, 2.0)),
        bg.Sgd(n, momentum=0.9, weight_decay=0.1, learning_rates=rates, coupled=True),
        bg.DenseWorkload(lower),
        bg.DenseWorkload(dense.toeplitz([2.0, 1.0, 0.5], n)),
    ]


@pytest.mark.parametrize("n", [1, 2, 17])
@pytest.mark.parametrize("kind", range(8))
def test_products_are_those_of_the_matrix(n, kind):
    work = workloads(n)[kind]
    a = work.dense()
    assert a.shape == (n, n) and not np.triu(a, 1).any()
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal(n), rng.standard_normal((n, 3))):
        assert work.apply(x) == pytest.approx(a @ x, abs=1e-12 * np.abs(a).sum())
        assert work.apply_transpose(x) == pytest.approx(a.T @ x, abs=1e-12 * np.abs(a).sum())
        assert work.solve(a @ x) == pytest.approx(x, abs=1e-9)
        assert a @ work.solve(x) == pytest.approx(x, abs=1e-9)
    taps = rng.standard_normal(min(n, 4))
    expected = np.linalg.norm(a @ dense.toeplitz(taps, n), axis=1)
    assert work.row_norms(taps) == pytest.approx(expected, rel=1e-10)
    if work.coefficients() is not None:
        assert dense.toeplitz(work.coefficients(), n) == pytest.approx(a, abs=1e-12 * np.abs(a).max())
        root, inverse = (dense.toeplitz(work.root(sign), n) for sign in (+1, -1))
        assert root @ root == pytest.approx(a, abs=1e-10 * np.abs(a).max())
        assert root @ inverse == pytest.approx(np.eye(n), abs=1e-10)
    else:
        with pytest.raises(ValueError, match="Toeplitz"):
            work.root(+1)
    if (state := work.init()) is not None:
        g = rng.standard_normal((n, 2))
        rows = []
        for t in range(n):
            row, state = work.step(g[t], state)
            rows.append(row)
        assert np.array(rows) == pytest.approx(a @ g, abs=1e-10 * np.abs(a).sum())


def test_scaled_learning_rate_scales_the_workload():
    rates = np.linspace(1, 0.1, 12)
    one = bg.Sgd(12, momentum=0.5, weight_decay=0.1, learning_rates=rates)
    other = bg.Sgd(12, momentum=0.5, weight_decay=0.1, learning_rates=3 * rates)
    assert other.dense() == pytest.approx(3 * one.dense(), rel=1e-12)


@pytest.mark.parametrize("name", ["lambda", "warm-up and cosine", "one cycle", "chained", "plateau-free steps"])
def test_a_torch_scheduler_is_read_ahead_and_left_alone(name):
    schedulers = torch.optim.lr_scheduler
    make = {
        "lambda": lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t)),
        "warm-up and cosine": lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, total_iters=3), schedulers.CosineAnnealingLR(o, 12)], [3]
        ),
        "one cycle": lambda o: schedulers.OneCycleLR(o, 0.5, total_steps=20),
        "chained": lambda o: schedulers.ChainedScheduler(
            [schedulers.ConstantLR(o, 0.3, 4), schedulers.ExponentialLR(o, 0.9)]
        ),
        "plateau-free steps": lambda o: schedulers.MultiStepLR(o, [2, 5], 0.1),
    }[name]

    def fresh():
        optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.25, momentum=0.9)
        return optimizer, make(optimizer)

    optimizer, scheduler = fresh()
    before = (repr(scheduler.state_dict()), repr(optimizer.state_dict()))
    found = bg.Sgd(11, learning_rates=scheduler).learning_rates
    assert (repr(scheduler.state_dict()), repr(optimizer.state_dict())) == before
    other, driven = fresh()
    expected = []
    for _ in range(11):
        expected.append(other.param_groups[0]["lr"])
        other.step()
        driven.step()
    assert np.asarray(found) == pytest.approx(expected, rel=1e-12)
    # and the one that was read still drives its optimizer
    for rate in expected:
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("momentum", "decay", "rate"), [(0.9, 0.01, 1.0), (0.0, 0.0, 0.5), (0.5, 0.0, 2.0)])
def test_the_square_root_squares_to_the_workload(momentum, decay, rate):
    n = 30
    work = bg.Sgd(n, momentum=momentum, weight_decay=decay, learning_rates=np.full(n, rate))
    c = bg.square_root(work).dense()
    assert c @ c == pytest.approx(work.dense(), abs=1e-12)
    # an independent root of the same series, in rational arithmetic
    exact = dense.square_root_coefficients(work.dense()[:, 0] / rate, n) * rate**0.5
    assert c[:, 0] == pytest.approx(exact, rel=1e-9)


def test_published_banded_roots():
    """alpha .9999, beta .9, n = 781, b = 78, k = 11, four bands."""
    work = bg.Sgd(781, momentum=0.9, weight_decay=1 - 0.9999)
    law = bg.MinSeparation(781, 78, 11)
    assert bg.sensitivity(bg.banded_square_root(work, 4), law) == pytest.approx(5.96654052, abs=1e-7)
    assert bg.sensitivity(bg.banded_inverse_square_root(work, 4), law) == pytest.approx(10.61496821, abs=1e-7)


def test_a_million_steps_of_momentum():
    n = 1_000_000
    norms = bg.errors(bg.identity(n), bg.Sgd(n, momentum=0.9))
    # row t of A: (1 - 0.9^(t - j + 1)) / 0.1, ten times the prefix sum but for the last few
    assert norms[-1] == pytest.approx(10 * np.sqrt(n), rel=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bg.Sgd(5, momentum=1.0), ["momentum=1.0", "[0, 1)"]),
        (lambda: bg.Sgd(5, weight_decay=-0.1), ["weight_decay=-0.1"]),
        (lambda: bg.Sgd(5, learning_rates=[0.1] * 4), ["len(learning_rates)=4", "5"]),
        (lambda: bg.Sgd(5, learning_rates=[0.1] * 6), ["len(learning_rates)=6", "5"]),
        (lambda: bg.Sgd(3, learning_rates=[0.1, 0.0, 0.1]), ["learning_rates=0.0", "above 0"]),
        (lambda: bg.Sgd(3, learning_rates=[0.1, float("nan"), 0.1]), ["learning_rates[1]=nan"]),
        (lambda: bg.Sgd(0), ["steps=0"]),
        (lambda: bg.square_root(bg.Sgd(3, learning_rates=[1, 2, 3])), ["learning_rates", "Toeplitz"]),
        (lambda: bg.Sgd(3, coupled="yes"), ["coupled='yes'", "True or False"]),
        (lambda: bg.square_root(bg.DenseWorkload([[1.0, 0], [1, 2]])), ["workload=", "Toeplitz"]),
        (lambda: bg.square_root(bg.DenseWorkload([[-1.0, 0], [0, -1]])), ["A[0, 0]=-1.0", "positive"]),
        (lambda: bg.DenseWorkload([[1.0, 2], [1, 2]]), ["matrix[0, 1]=2.0", "lower-triangular"]),
        (lambda: bg.DenseWorkload([[1.0, 0], [1, 0]]), ["matrix[1, 1]=0.0", "diagonal"]),
        (lambda: bg.DenseWorkload([[1.0, 0, 0], [1, 1, 0]]), ["matrix.shape=(2, 3)", "square"]),
        (lambda: bg.DenseWorkload([1.0, 2.0]), ["matrix.shape=(2,)", "two-dimensional"]),
        (lambda: bg.DenseWorkload([[1.0, 0], [float("inf"), 1]]), ["matrix[1, 0]=inf", "finite"]),
        (lambda: bg.DenseWorkload([[1.0], [1.0, 2.0]]), ["matrix=", "rows of numbers"]),
        (lambda: bg.DenseWorkload("A"), ["matrix="]),
        (lambda: bg.banded_square_root(bg.PrefixSum(5), 6), ["bands=6", "5"]),
        (lambda: bg.banded_inverse_square_root(bg.PrefixSum(5), 0), ["bands=0"]),
        (lambda: bg.banded_square_root(5, 2), ["workload=5"]),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
