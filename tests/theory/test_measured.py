"""Measured curvature: Lanczos against dense spectra, products against the Hessian, and the command that advises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from bluegrad import theory
from bluegrad.cli import app
from bluegrad.cli.theory import advice
from bluegrad.theory.measured import Density, gauss_newton_product, stochastic_lanczos


def symmetric(eigenvalues, seed=0):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(eigenvalues), len(eigenvalues))))
    return basis @ np.diag(eigenvalues) @ basis.T


def test_full_lanczos_finds_every_eigenvalue():
    eigenvalues = np.array([0.1, 0.5, 1.0, 2.0, 5.0])
    found = stochastic_lanczos(lambda v: symmetric(eigenvalues) @ v, 5, iterations=5, probes=1)
    np.testing.assert_allclose(found.values, eigenvalues, atol=1e-10)
    assert found.multiplicities.sum() == pytest.approx(5.0)


def test_moments_within_their_standard_error_and_a_wrong_one_beyond():
    eigenvalues = np.arange(1, 201.0) ** -1
    matrix = symmetric(eigenvalues)
    found = stochastic_lanczos(lambda v: matrix @ v, 200, iterations=30, probes=200, seed=1)
    # Var of v^T H v / v^T v times d over Gaussian v is about 2 |H|_F^2
    error = np.sqrt(2 * (eigenvalues @ eigenvalues) / 200)
    assert abs(found.trace - eigenvalues.sum()) < 4 * error
    assert abs(found.trace - 1.2 * eigenvalues.sum()) > 4 * error
    assert found.values.max() == pytest.approx(1.0, rel=1e-9)


def test_errors_from_an_estimated_spectrum_are_near_the_truth():
    eigenvalues = np.arange(1, 201.0) ** -1
    matrix = symmetric(eigenvalues)
    problem, left_out = stochastic_lanczos(lambda v: matrix @ v, 200, iterations=40, probes=20).problem(0.1)
    exact = theory.Problem(eigenvalues, 0.1)
    assert left_out == 0.0
    assert theory.white_private(problem) == pytest.approx(theory.white_private(exact), rel=0.01)
    assert theory.optimal_private(problem) == pytest.approx(theory.optimal_private(exact), rel=0.1)


def test_low_rank_ends_early_and_its_null_space_is_left_out():
    matrix = symmetric([3.0, 1.0] + [0.0] * 8)
    found = stochastic_lanczos(lambda v: matrix @ v, 10, iterations=10, probes=30)
    problem, left_out = found.problem(0.1)
    np.testing.assert_allclose(np.unique(problem.spectrum.round(8)), [1.0, 3.0])
    assert problem.dimension + left_out == pytest.approx(10.0)


def test_slow_directions_are_left_out():
    density = Density(np.array([0.001, 0.1, 1.0]), np.array([5.0, 2.0, 1.0]))
    problem, left_out = density.problem(0.1, slowest=1 / 1000)
    assert left_out == 5.0 and problem.dimension == 3.0
    with pytest.raises(ValueError, match="no direction settle"):
        density.problem(0.1, slowest=1.0)


def test_product_is_the_hessian_of_a_linear_model():
    torch.manual_seed(0)
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    model = nn.Linear(3, 3).double()
    product, d = gauss_newton_product(model, x)

    def loss(flat):
        return nn.functional.cross_entropy(x @ flat[:9].view(3, 3).T + flat[9:], y)

    hessian = torch.autograd.functional.hessian(loss, torch.cat([p.detach().flatten() for p in model.parameters()]))
    found = np.stack([product(unit) for unit in np.eye(d)])
    np.testing.assert_allclose(found, hessian.numpy(), atol=1e-12)


def test_product_is_positive_and_symmetric_for_a_network():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    product, d = gauss_newton_product(model, torch.randn(6, 4, dtype=torch.float64))
    matrix = np.stack([product(unit) for unit in np.eye(d)])
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12
    assert np.linalg.matrix_rank(matrix, tol=1e-9) <= 6 * 2


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="iterations=0"):
        stochastic_lanczos(lambda v: v, 3, iterations=0)
    with pytest.raises(ValueError, match="isn't finite"):
        stochastic_lanczos(lambda v: v * np.nan, 3)
    with pytest.raises(ValueError, match="no trainable parameter"):
        gauss_newton_product(nn.Flatten(), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"learning_rate=1.0.*2 / L"):
        Density(np.array([3.0]), np.array([1.0])).problem(1.0)


def test_advice_orders_mechanisms():
    problem = theory.Problem(1.0 / np.arange(1, 129), 0.02)
    ratios = {name: ratio for name, _, ratio in advice(problem)}
    assert ratios["optimum"] < ratios["nu-dp-ftrl"] < ratios["lambda-cgd"] < ratios["dp-sgd"] == 1.0
    assert ratios["optimum"] == pytest.approx(theory.optimal_private(problem) / theory.white_private(problem))


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.integers(0, 255, (60, 8, 8)).astype(np.uint8), y=np.arange(60) % 3)
    return path


@pytest.mark.parametrize("model", ["linear", "cnn"])
def test_the_command_advises_and_warns(images, tmp_path, model):
    plot = tmp_path / "advice.png"
    options = ["--examples", "40", "--iterations", "8", "--probes", "1", "--lr", "0.01", "--plot", str(plot)]
    done = CliRunner().invoke(app, ["theory", "advise", "--data", str(images), "--model", model, *options])
    assert done.exit_code == 0, done.output
    assert "costs privacy" in " ".join(done.output.split())
    for word in ("lambda-cgd", "nu-dp-ftrl", "optimum", "effective dimension"):
        assert word in " ".join(done.output.split())
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_command_refuses_a_rate_that_diverges(images, tmp_path):
    options = ["--data", str(images), "--model", "linear", "--lr", "1000", "--plot", str(tmp_path / "advice.png")]
    done = CliRunner().invoke(app, ["theory", "advise", *options])
    assert done.exit_code == 2
    assert "diverges" in done.stderr
