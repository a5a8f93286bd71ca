"""The curvature of a model on data: eigenvalue density by stochastic Lanczos, with products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import nn
from torch.func import functional_call

from bluegrad import _checks
from bluegrad.strategy.base import Array
from bluegrad.theory.problem import Problem

Product = Callable[[Array], Array]
# Eigenvalues below this share of the largest are rounding in float32.
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Density:
    """An estimated spectrum: eigenvalues and how often each occurs, which needn't be whole.

    Attributes:
        values: Ritz values, rising, shape (probes * iterations,) at most.
        multiplicities: their weights times the dimension, of sum d.
    """

    values: Array
    multiplicities: Array

    @property
    def trace(self) -> float:
        """Estimated trace."""
        return float(self.values @ self.multiplicities)

    def problem(self, learning_rate: float, *, slowest: float = 0.0) -> tuple[Problem, float]:
        """The quadratic problem of these eigenvalues, without those that aren't positive or learn too slowly.

        Args:
            learning_rate: eta, below 2 / L.
            slowest: least eta * eigenvalue that counts, such as 1 / steps: slower directions haven't settled by then.

        Returns:
            The problem, and how many directions were left out.

        Raises:
            ValueError: a learning rate out of range, or no direction left.
        """
        floor = max(_ROUNDING * float(self.values.max()), slowest / learning_rate)
        kept = self.values > floor
        if not kept.any():
            raise _checks.fail("learning_rate", learning_rate, "lets no direction settle", "train longer or faster")
        problem = Problem(self.values[kept], learning_rate, multiplicities=self.multiplicities[kept])
        return problem, float(self.multiplicities[~kept].sum())


def stochastic_lanczos(
    product: Product, dimension: int, *, iterations: int = 40, probes: int = 4, seed: int = 0
) -> Density:
    """Eigenvalue density of a symmetric matrix from its products with random vectors.

    A Lanczos run of m steps from a random unit vector v gives Gauss quadrature for the measure that v puts on the
    spectrum: Ritz values with the squared first components of their vectors as weights. The mean over probes estimates
    the density; the largest eigenvalue converges first. Vectors are orthogonalised fully, twice.

    Args:
        product: v -> H v, shape (dimension,).
        dimension: d.
        iterations: Lanczos steps m of a probe, at most d are made.
        probes: random start vectors.
        seed: of numpy's generator.

    Returns:
        The density, of total multiplicity d.

    Raises:
        ValueError: an argument out of range, or a product that isn't finite.

    Example:
        >>> found = stochastic_lanczos(lambda v: np.array([3.0, 1.0]) * v, 2, iterations=2, probes=8)
        >>> round(float(found.values.max()), 9), round(float(found.multiplicities.sum()), 9)
        (3.0, 2.0)

    Source: Golub and Welsch 1969; Ubaru, Chen and Saad 2017.
    """
    for name, value in (("dimension", dimension), ("iterations", iterations), ("probes", probes)):
        _checks.integer(name, value, minimum=1, fix="give a number of vectors")
    generator = np.random.default_rng(seed)
    values, weights = [], []
    for _ in range(probes):
        ritz, weight = _probe(product, generator.standard_normal(dimension), min(iterations, dimension))
        values.append(ritz)
        weights.append(weight * dimension / probes)
    order = np.argsort(np.concatenate(values))
    return Density(np.concatenate(values)[order], np.concatenate(weights)[order])


def _probe(product: Product, start: Array, iterations: int) -> tuple[Array, Array]:
    """Ritz values and weights of one Lanczos run."""
    basis = [start / np.linalg.norm(start)]
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(iterations):
        w = np.asarray(product(basis[-1]), dtype=np.float64)
        if not np.isfinite(w).all():
            raise _checks.fail("product", "H v", "isn't finite", "check the model's outputs and the data")
        diagonal.append(float(basis[-1] @ w))
        kept = np.array(basis)
        for _ in range(2):
            w = w - kept.T @ (kept @ w)
        norm = float(np.linalg.norm(w))
        # the start vector's Krylov space is exhausted
        if step == iterations - 1 or norm <= 1e-10 * max(abs(x) for x in diagonal):
            break
        beside.append(norm)
        basis.append(w / norm)
    ritz, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside[: len(diagonal) - 1]))
    return np.asarray(ritz), np.asarray(vectors[0] ** 2)


def gauss_newton_product(model: nn.Module, inputs: torch.Tensor) -> tuple[Product, int]:
    """Products with the Gauss-Newton matrix of the mean cross-entropy on a batch, and the number of parameters.

    J^T (diag(p) - p p^T) J / batch, p the predicted probabilities and J the Jacobian of the logits: positive
    semidefinite, equal to the Fisher information, and to the Hessian where the logits are linear. It depends on the
    examples but not on their labels.

    Args:
        model: module from inputs to logits, shape (batch, classes); it isn't changed.
        inputs: a batch, public or synthetic: what is learned from private data here costs privacy that nobody counts.

    Returns:
        v -> G v on flat float64 vectors, and their length.

    Raises:
        ValueError: a model without trainable parameters.

    Example:
        >>> product, d = gauss_newton_product(nn.Linear(2, 3), torch.ones(4, 2))
        >>> d, product(np.zeros(d)).shape
        (9, (9,))

    Source: Schraudolph 2002, curvature matrix-vector products.
    """
    named = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise _checks.fail("model", type(model).__name__, "has no trainable parameter", "set requires_grad")
    parameters = list(named.values())
    sizes = [p.numel() for p in parameters]
    logits = functional_call(model, named, (inputs,))
    chances = torch.softmax(logits.detach(), dim=1)
    # J^T u as a function of u, linear: its own transpose is J v
    dual = torch.zeros_like(logits, requires_grad=True)
    back = torch.autograd.grad(logits, parameters, dual, create_graph=True)

    def product(v: Array) -> Array:
        parts = torch.from_numpy(np.array(v)).split(sizes)
        direction = [part.view_as(p).to(p) for part, p in zip(parts, parameters)]
        (change,) = torch.autograd.grad(back, dual, direction, retain_graph=True)
        curved = chances * change
        curved = (curved - chances * curved.sum(dim=1, keepdim=True)) / len(logits)
        out = torch.autograd.grad(logits, parameters, curved, retain_graph=True)
        return np.asarray(torch.cat([part.flatten() for part in out]).double().cpu().numpy())

    return product, sum(sizes)
