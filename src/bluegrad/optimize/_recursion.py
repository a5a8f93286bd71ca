"""Error of A N for the noise N of a BLT, with its gradient: the joint recursion of buffers and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bluegrad._checks import Unsupported
from bluegrad.optimize._doubling import energy
from bluegrad.optimize._gram import state_space
from bluegrad.optimize._problem import row_loss
from bluegrad.workload import Workload

Array = NDArray[np.float64]
# decays, scales -> log of the squared error, and its gradients in both
LogError = Callable[[Array, Array], tuple[float, Array, Array]]


class Optimizer(NamedTuple):
    """x_t = F_t x_(t-1) + g_t y_t, model h_t x_(t-1) + a_t y_t; F is (steps, d, d), g and h (steps, d), a (steps,)."""

    f: Array
    g: Array
    h: Array
    a: Array


def errors(workload: Workload, powers: tuple[float, ...]) -> list[LogError]:
    """Log of the squared error: one function where A is Toeplitz, else one for every power of the row loss.

    Raises:
        Unsupported: the workload isn't a recursion of short state.
    """
    if workload.init() is None:
        raise Unsupported(
            f"workload={workload!r}: it has no recursion to follow; use bluegrad.PrefixSum or bluegrad.Sgd, or "
            "optimise a banded strategy"
        )
    if workload.coefficients() is not None:
        few = Optimizer(*(part[0] for part in state_space(workload, 1)))
        return [partial(_constant, few, workload.steps, powers == (1.0,))]
    every = Optimizer(*state_space(workload, workload.steps))
    return [partial(_changing, every, power) for power in powers]


def _joint(f: Array, g: Array, h: Array, a: float, q: Array, u: Array) -> tuple[Array, Array, Array]:
    """Transition, entry and output (from the state before) of the state (s, x)."""
    k = len(q)
    transition = np.zeros((k + len(g), k + len(g)))
    transition[:k, :k] = np.diag(q) - np.outer(u, u)
    transition[k:, :k] = -np.outer(g, u)
    transition[k:, k:] = f
    return transition, np.concatenate([u, g]), np.concatenate([-a * u, h])


def _constant(few: Optimizer, steps: int, mean: bool, q: Array, w: Array) -> tuple[float, Array, Array]:
    """b_0 = a, b_t = output transition^(t-1) entry; the mean of the running sums of b^2, or the last."""
    k, u, a = len(q), np.sqrt(w), float(few.a)
    transition, entry, output = _joint(few.f, few.g, few.h, a, q, u)
    direct = steps * a * a if mean else a * a
    if steps == 1:
        return float(np.log(direct)), np.zeros(k), np.zeros(k)
    later = energy(transition, entry, output, steps - 1, running=mean)
    total = direct + later.value
    if not np.isfinite(total):
        return np.inf, np.zeros(k), np.zeros(k)
    moved = later.in_transition
    in_u = later.in_input[:k] - a * later.in_output[:k] - moved[k:, :k].T @ few.g - (moved + moved.T)[:k, :k] @ u
    scale = 1.0 / total
    return float(np.log(total / steps if mean else total)), scale * np.diag(moved)[:k], scale * in_u / (2.0 * u)


def _changing(every: Optimizer, power: float, q: Array, w: Array) -> tuple[float, Array, Array]:
    """The row loss where the optimizer changes: covariances of (s, x) forwards, the gradient in them backwards."""
    k, u, a = len(q), np.sqrt(w), every.a
    d = k + every.g.shape[1]
    transition = np.zeros((len(a), d, d))
    transition[:, :k, :k] = np.diag(q) - np.outer(u, u)
    transition[:, k:, :k] = -every.g[:, :, None] * u
    transition[:, k:, k:] = every.f
    entry = np.concatenate([np.broadcast_to(u, (len(a), k)), every.g], axis=1)  # (steps, d)
    output = np.concatenate([-a[:, None] * u, every.h], axis=1)  # (steps, d)
    covariances = covariance_before(transition, entry[:, :, None] * entry[:, None, :])
    seen = np.einsum("tij,tj->ti", covariances, output)
    value, weights = row_loss(a * a + (seen * output).sum(axis=1), power)
    if not np.isfinite(value):
        return np.inf, np.zeros(k), np.zeros(k)
    direct = weights[:, None, None] * output[:, :, None] * output[:, None, :]
    later = covariance_before(transition[::-1].transpose(0, 2, 1), direct[::-1])[::-1]  # gradient in what a step leaves
    moved = 2.0 * later @ transition @ covariances
    total = moved.sum(axis=0)[:k, :k]
    in_u = 2.0 * np.einsum("tij,tj->i", later[:, :k], entry) - (total + total.T) @ u
    in_u -= np.einsum("tij,ti->j", moved[:, k:, :k], every.g) + 2.0 * (weights * a) @ seen[:, :k]
    return value, np.diag(total), in_u / (2.0 * u)


def covariance_before(transition: Array, added: Array) -> Array:
    """P_t before step t, P_0 = 0, P_(t+1) = F_t P_t F_t^T + Q_t, shape (steps, d, d).

    All pieces of about sqrt(n) steps are followed at once, first from 0, then from where the piece before ended.
    """
    n, d, _ = transition.shape
    size = isqrt(n - 1) + 1
    pieces = -(-n // size)
    pad = ((0, pieces * size - n), (0, 0), (0, 0))
    f, q = (np.pad(x, pad).reshape(pieces, size, d, d).swapaxes(0, 1) for x in (transition, added))
    from_zero, power = np.zeros((pieces, d, d)), np.broadcast_to(np.eye(d), (pieces, d, d))
    for step, extra in zip(f, q):
        from_zero = step @ from_zero @ step.transpose(0, 2, 1) + extra
        power = step @ power
    out = np.zeros((size, pieces, d, d))
    for piece in range(1, pieces):
        out[0, piece] = from_zero[piece - 1] + power[piece - 1] @ out[0, piece - 1] @ power[piece - 1].T
    for j in range(size - 1):
        out[j + 1] = f[j] @ out[j] @ f[j].transpose(0, 2, 1) + q[j]
    return out.swapaxes(0, 1).reshape(pieces * size, d, d)[:n]
