"""The canary: at which steps it joins, with which signs, and who stands for it among the examples of a real sampler.

Many examples of one sampler are as many repetitions: each has noise of its own in a coordinate of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks
from bluegrad.mechanism import Mechanism
from bluegrad.noise.key import NoiseKey
from bluegrad.participation import CyclicPoisson, Participation, Separated
from bluegrad.sampling import BatchStream, batch_stream
from bluegrad.strategy.base import check_dense

Array = NDArray[np.float64]
Members = NDArray[np.bool_]

_SWEEPS = 100


@dataclass(frozen=True, eq=False)
class Canary:
    """An example whose gradient at step t is signs[t] times the clip norm, in a direction of its own.

    Args:
        signs: 1 or -1 for every step, shape (steps,).
        pattern: the steps it joins, shape (steps,), where the law tells them to anybody; else None.
    """

    signs: Array
    pattern: Members | None


@dataclass(frozen=True, eq=False)
class Draw:
    """Examples that stand for the canary in one draw of the batches.

    Args:
        key: secret of the draw.
        examples: number of examples in the data set.
        chosen: indices of those that stand for the canary, shape (count,).
        joined: whether each of them joins each step, shape (steps, count).
    """

    key: NoiseKey
    examples: int
    chosen: NDArray[np.int64]
    joined: Members


def whitened(mechanism: Mechanism) -> Array:
    """R^-1, where R R^T is the covariance of the claimed noise (clip norm 1), shape (steps, steps).

    It makes the claimed noise white, and its columns are what unit gradients become.

    The claim is about the law of N Z, so this is formed from N itself and not from what a stream makes of it.
    """
    check_dense(mechanism.strategy, "audit")
    n = mechanism.noise_scale(1.0) * mechanism.strategy.noising()
    return np.linalg.inv(np.linalg.cholesky(n @ n.T))


def choose_canary(law: Participation, effects: Array) -> Canary:
    """The canary that the noise hides least, among what the sampler of a known partition draws.

    Args:
        law: by which batches are drawn.
        effects: whitened effect of a unit gradient at each step, shape (steps, steps).
    """
    if not isinstance(law, Separated):
        return Canary(np.ones(len(effects)), None)
    size = max(law.steps, law.separation)
    patterns = np.unique(membership(batch_stream(law, size, NoiseKey.generate())), axis=1)
    candidates = [(pattern, *_worst_signs(effects[:, pattern].T @ effects[:, pattern])) for pattern in patterns.T]
    pattern, signs, _ = max(candidates, key=lambda candidate: candidate[2])
    all_signs = np.ones(len(effects))
    all_signs[pattern] = signs
    return Canary(all_signs, pattern)


def _worst_signs(gram: Array) -> tuple[Array, float]:
    """Signs with a large s^T X s: flipped one by one while that helps, from the best of two starts."""
    if not len(gram):
        return np.ones(0), 0.0
    leading = np.where(np.linalg.eigh(gram)[1][:, -1] < 0.0, -1.0, 1.0)
    found = [_flipped(gram, start) for start in (np.ones(len(gram)), leading)]
    return max(((signs, float(signs @ gram @ signs)) for signs in found), key=lambda pair: pair[1])


def _flipped(gram: Array, signs: Array) -> Array:
    off, signs = gram - np.diag(np.diag(gram)), signs.copy()
    for _ in range(_SWEEPS * len(gram)):
        gain = -signs * (off @ signs)
        i = int(gain.argmax())
        if gain[i] <= 1e-12 * gram.max():
            break
        signs[i] = -signs[i]
    return signs


def draw(law: Participation, canary: Canary, count: int) -> Draw:
    """A fresh draw of the batches in which about `count` examples stand for the canary.

    Raises:
        Unsupported: no sampler draws this law.
    """
    key = NoiseKey.generate()
    stream = batch_stream(law, _examples(law, count), key)
    joined = membership(stream)
    chosen = _stand_ins(law, stream, joined, canary)
    return Draw(key, stream.size, chosen, joined[:, chosen])


def membership(stream: BatchStream) -> Members:
    """Whether each example joins each step, shape (steps, examples)."""
    joined = np.zeros((stream.steps, stream.size), dtype=np.bool_)
    for t in range(stream.steps):
        joined[t, stream.batch(t)] = True
    return joined


@singledispatch
def _examples(law: Participation, count: int) -> int:
    return count


@_examples.register
def _(law: Separated, count: int) -> int:
    groups = batch_stream(law, max(law.steps, law.separation), NoiseKey(bytes(16))).epoch_steps
    return count * groups


@_examples.register
def _(law: CyclicPoisson, count: int) -> int:
    return count * law.period


@singledispatch
def _stand_ins(law: Participation, stream: BatchStream, joined: Members, canary: Canary) -> NDArray[np.int64]:
    return np.arange(stream.size)


@_stand_ins.register
def _(law: Separated, stream: BatchStream, joined: Members, canary: Canary) -> NDArray[np.int64]:
    assert canary.pattern is not None
    return np.flatnonzero((joined == canary.pattern[:, None]).all(axis=0))


@_stand_ins.register
def _(law: CyclicPoisson, stream: BatchStream, joined: Members, canary: Canary) -> NDArray[np.int64]:
    # who belongs to the first group isn't secret: at rate 1 the same key draws all of it
    return batch_stream(replace(law, rate=1.0), stream.size, stream.key).batch(0)


def check_steps(claimed: Participation, drawn: Participation) -> None:
    """Refuse a subject of another horizon than the claim's.

    Raises:
        ValueError: the numbers of steps differ.
    """
    if claimed.steps != drawn.steps:
        raise _checks.fail(
            "subject.steps", drawn.steps, f"must equal the claim's steps={claimed.steps}",
            "make claim and subject for the same run",
        )  # fmt: skip
