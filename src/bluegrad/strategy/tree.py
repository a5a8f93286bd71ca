"""Tree aggregation: noisy sums over the nodes of a binary tree, decoded online or with all nodes.

Both decoders stream alike. Let T_i be the sums of the noise handed out so far over the blocks of the binary
expansion of t, smallest block first (for t = 6: the last 2 steps, then the 4 before). Given them, the next noise is
Gaussian with a mean linear in T and a known variance, so that one new normal a step and popcount(t) model copies do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt
from typing import Any, final

import numpy as np

from bluegrad import _checks
from bluegrad.strategy.base import Array, State, Strategy, check_dense, check_horizon, check_prefix, stepped
from bluegrad.strategy.wrappers import Prefix


@final
@dataclass(frozen=True, eq=False, repr=False)
class Tree(Strategy):
    """One row of C a node of the binary tree over the steps, 1 where the step lies under it."""

    steps: int
    decoder: str

    def __repr__(self) -> str:
        return f"tree_aggregation(steps={self.steps}, decoder={self.decoder!r})"

    @property
    def height(self) -> int:
        """Level of the root; leaves have level 0."""
        return (self.steps - 1).bit_length()

    @cached_property
    def _nodes(self) -> list[tuple[int, int]]:
        """(level, first step) of every node with a real step below it, by level."""
        return [(level, first) for level in range(self.height + 1) for first in range(0, self.steps, 1 << level)]

    def dense(self) -> Array:
        """C, shape (nodes, steps)."""
        out = np.zeros((len(self._nodes), self.steps))
        for row, (level, first) in zip(out, self._nodes):
            row[first : first + (1 << level)] = 1.0
        return out

    def noising(self) -> Array:
        """N, shape (steps, nodes): differences of the decoder's estimates of the prefix sums."""
        check_dense(self, "noising")
        if self.decoder == "full":
            return np.asarray(np.linalg.pinv(self.dense()))
        index = {node: i for i, node in enumerate(self._nodes)}
        prefixes = np.zeros((self.steps, len(self._nodes)))
        for t in range(self.steps):
            for level, first in _blocks(t + 1, self.steps, self.height):
                prefixes[t] += self._estimate(level, first, index)[1]
        return np.diff(prefixes, axis=0, prepend=0.0)

    def _estimate(self, level: int, first: int, index: dict[tuple[int, int], int]) -> tuple[float, Array]:
        """Variance of Honaker's estimate of a node from itself and what is below, and its weights on all nodes."""
        own = np.zeros(len(self._nodes))
        own[index[level, first]] = 1.0
        if level == 0:
            return 1.0, own
        middle = first + (1 << (level - 1))
        variance, below = self._estimate(level - 1, first, index)
        if middle < self.steps:
            more, right = self._estimate(level - 1, middle, index)
            variance, below = variance + more, below + right
        share = variance / (1.0 + variance)  # inverse-variance weight of the node's own value
        return share, share * own + (1.0 - share) * below

    def causal(self) -> Array:
        """L by the stream's own steps, shape (steps, steps)."""
        check_dense(self, "noise")
        return stepped(self)

    def gram_diagonal(self, lag: int) -> Array:
        """(C^T C)[i, i + lag]: the number of nodes above both steps."""
        i = np.arange(self.steps - lag, dtype=np.int64)
        apart = i ^ (i + lag)
        # the lowest common node of i and j has the level of the highest bit in which they differ, plus one
        return self.height + 1.0 - np.frexp(apart.astype(np.float64))[1]

    def column_norms(self) -> Array:
        """Every step lies under one node a level."""
        return np.full(self.steps, sqrt(self.height + 1.0))

    def kept(self, t: int) -> int:
        """One sum a block of t's binary expansion."""
        return t.bit_count()

    @property
    def memory(self) -> int:
        """Model copies: the most bits of a step number up to the last but one."""
        last = self.steps - 1
        return max(last.bit_length() - 1, last.bit_count())

    @property
    def cost(self) -> tuple[int, int]:
        """One normal; on average each bit of the step number is 1 half of the time."""
        return 1, 1 + self.height // 2 if self.decoder == "full" else 2

    def step(self, z: Any, state: State) -> tuple[Any, State]:
        """y_t = s_t z_t + sum_i w_(t,i) T_i; T gains y_t as a block of one and merges equal blocks.

        Raises:
            ValueError: the stream is past its last step.
        """
        t, sums = state
        check_horizon(t, self.steps)
        weights, scale = (_online if self.decoder == "online" else _full)(t, self.steps, self.height)
        y = scale * z
        for weight, total in zip(weights, sums):
            if weight:
                y = y + weight * total
        merged, remaining = y, sums
        for _ in range(_trailing_ones(t)):
            merged, remaining = merged + remaining[0], remaining[1:]
        return y, (t + 1, (merged, *remaining))

    def prefix(self, steps: int) -> Strategy:
        """The first steps of this very tree, with later steps left out."""
        check_prefix(steps, self)
        return self if steps == self.steps else Prefix(self, steps)

    def describe(self) -> dict[str, Any]:
        """Decoder."""
        return {"name": "tree_aggregation", "steps": self.steps, "parameters": {"decoder": self.decoder}}


def _trailing_ones(t: int) -> int:
    return (~t & (t + 1)).bit_length() - 1


def _blocks(t: int, steps: int, height: int) -> list[tuple[int, int]]:
    """(level, first step) of the maximal nodes that make up the first t steps; the root for all of them."""
    if t == steps:
        return [(height, 0)]
    return [(level, (t >> (level + 1)) << (level + 1)) for level in range(height + 1) if t >> level & 1]


@lru_cache(maxsize=4096)
def _variance(level: int, real: int) -> float:
    """Variance of the estimate of a node over `real` steps from itself and what is below it."""
    if level == 0:
        return 1.0
    half = 1 << (level - 1)
    below = _variance(level - 1, min(real, half)) + (_variance(level - 1, real - half) if real > half else 0.0)
    return below / (1.0 + below)


def _online(t: int, steps: int, height: int) -> tuple[list[float], float]:
    """Weights on the block sums and scale of the new normal for Honaker's estimate from below.

    The estimates of completed nodes telescope to the sums of what was handed out. At step t the nodes that end there
    are estimated in turn, each mixing its own value with the estimate below it; at the last step the tree is completed
    by steps without value or noise, up to the root.
    """
    levels = height if t == steps - 1 else _trailing_ones(t)
    weights: list[float] = []
    variance, scale = 1.0, 1.0  # of the estimate so far: variance given nothing, deviation given the blocks
    bits = [level for level in range(height + 1) if t >> level & 1]
    for level in range(1, levels + 1):
        if t >> (level - 1) & 1:
            weights.append(1.0)
            variance += _variance(level - 1, 1 << (level - 1))
        share = variance / (1.0 + variance)
        weights = [weight * (1.0 - share) for weight in weights]
        scale = sqrt((scale * (1.0 - share)) ** 2 + share**2)
        variance = share
    # the new estimate replaces the blocks it covers: what is handed out is the difference
    return [weight - 1.0 for weight in weights] + [0.0] * (len(bits) - len(weights)), scale


def _full(t: int, steps: int, height: int) -> tuple[list[float], float]:
    """Weights on the block sums and scale of the new normal for the pseudo-inverse.

    The noise has precision C^T C: minus twice its log density is the sum over nodes of the squared sum below each.
    Given the past, only t's ancestors matter, with the past's part S_l of their sums; the sums R_l of the subtrees to
    t's right are integrated out from the root down, which leaves p (y + m)^2 with m linear in the block sums.
    """
    bits = [level for level in range(height + 1) if t >> level & 1]
    precision, mean = 0.0, np.zeros(len(bits))
    for level in range(height, -1, -1):
        past = np.array([float(bit < level) for bit in bits])  # S_level as a sum of blocks
        mean = (precision * mean + past) / (precision + 1.0)
        precision += 1.0
        if level and not t >> (level - 1) & 1:
            first = ((t >> (level - 1)) + 1) << (level - 1)
            real = min(steps - first, 1 << (level - 1))
            if real > 0:
                precision /= 1.0 + precision * _variance(level - 1, real)
    return [-float(weight) for weight in mean], 1.0 / sqrt(precision)


def tree_aggregation(steps: int, *, decoder: str = "online") -> Strategy:
    """Binary tree aggregation with Honaker's decoders: "online" from the nodes completed so far, "full" from all.

    C has one row a node, 1 for every step under it. Any n: the tree is completed by steps that have neither value nor
    noise. Streams with one new normal a step and at most log2(n) + 1 model copies; `stamped` restarts it.

    Args:
        steps: number of steps n.
        decoder: "online" (inverse-variance weights from below) or "full" (the pseudo-inverse, the least error).

    Returns:
        The strategy, C of shape (nodes, steps).

    Raises:
        ValueError: steps isn't a positive integer, or an unknown decoder.

    Example:
        >>> tree_aggregation(2).dense()
        array([[1., 0.],
               [0., 1.],
               [1., 1.]])

    Source: Honaker 2015; arXiv 2103.00039 (Kairouz et al.), section 2 and appendix B.
    """
    _checks.integer("steps", steps, minimum=1, fix="give the number of training steps")
    return Tree(steps, _checks.choice("decoder", decoder, ("online", "full")))
