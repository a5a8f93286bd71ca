"""Error of A N for the noise N of a BLT, with its gradient: the joint recursion of buffers and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    steps, k, u = len(every.a), len(q), np.sqrt(w)
    joints = [_joint(f, g, h, float(a), q, u) for f, g, h, a in zip(*every)]
    covariances = [np.zeros((k + every.g.shape[1],) * 2)]
    variances = every.a**2
    for t, (transition, entry, output) in enumerate(joints):
        before = covariances[-1]
        variances[t] += output @ before @ output
        covariances.append(transition @ before @ transition.T + np.outer(entry, entry))
    value, weights = row_loss(variances, power)
    in_u, in_q, later = np.zeros(k), np.zeros(k), np.zeros_like(covariances[0])
    if not np.isfinite(value):
        return np.inf, in_q, in_u
    for t in range(steps - 1, -1, -1):
        transition, entry, output = joints[t]
        moved = 2.0 * later @ transition @ covariances[t]
        in_q += np.diag(moved)[:k]
        in_u += 2.0 * (later @ entry)[:k] - moved[k:, :k].T @ every.g[t] - (moved + moved.T)[:k, :k] @ u
        in_u -= 2.0 * weights[t] * every.a[t] * (covariances[t] @ output)[:k]
        later = transition.T @ later @ transition + weights[t] * np.outer(output, output)
    return value, in_q, in_u / (2.0 * u)
