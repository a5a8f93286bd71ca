"""Three ways to form a row of N Z, chosen by what the strategy's structure makes cheapest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bluegrad.noise import kernel
from bluegrad.noise.key import NoiseKey
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import REPLAYED_BANDS

Floats = NDArray[np.float32]
_BLOCK = 1 << 15  # elements summed over all taps while they stay in cache; smaller than a kernel's block


class Source(ABC):
    """Scaled noise of the step at hand; every leaf of a step is added in full before `finish`."""

    def __init__(self, strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey) -> None:
        self.strategy, self.sizes, self.scale, self.key = strategy, sizes, scale, key

    @abstractmethod
    def add(self, out: Floats, step: int, leaf: int, start: int) -> None:
        """Add elements start .. start + len(out) of the leaf's noise to `out`, in place."""

    def finish(self, step: int) -> None:  # noqa: B027 - most sources have nothing to drop
        """Drop what only this step needed."""

    def buffers(self) -> list[list[Floats]]:
        """What can't be drawn again, a list of arrays a leaf."""
        return [[] for _ in self.sizes]

    def rows(self, step: int) -> int:
        """How many arrays a leaf `buffers` holds after `step` steps."""
        return 0

    def restore(self, buffers: list[list[Floats]]) -> None:  # noqa: B027 - nor to restore
        """Take back what `buffers` gave."""

    def _normals(self, step: int, leaf: int) -> Floats:
        return kernel.normals(self.key.secret, step=step, leaf=leaf, start=0, count=self.sizes[leaf])

    def _weights(self, step: int) -> NDArray[np.float64]:
        weights = self.strategy.taps(step)
        assert weights is not None
        return weights


class Replayed(Source):
    """Few taps: earlier noise is drawn again in every step, nothing is kept."""

    def add(self, out: Floats, step: int, leaf: int, start: int) -> None:
        """Draw and sum all taps."""
        kernel.add_weighted_normals(
            out, self._weights(step), key=self.key.secret, step=step, leaf=leaf, start=start, scale=self.scale
        )


class Kept(Source):
    """Many taps: raw noise is kept, newest last; what is missing after a resume is drawn again."""

    def __init__(self, strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey) -> None:
        super().__init__(strategy, sizes, scale, key)
        self._drawn: list[list[Floats]] = [[] for _ in sizes]

    def add(self, out: Floats, step: int, leaf: int, start: int) -> None:
        """Sum all taps block by block, in the kernel's order: first the newest, then into `out`."""
        drawn = self._drawn[leaf]
        while len(drawn) <= step:
            drawn.append(self._normals(len(drawn), leaf))
        weights = (self._weights(step) * self.scale).astype(np.float32)
        term = np.empty(_BLOCK, dtype=np.float32)
        total = np.empty(_BLOCK, dtype=np.float32)
        for low in range(0, len(out), _BLOCK):
            size = min(_BLOCK, len(out) - low)
            here = slice(start + low, start + low + size)
            np.multiply(drawn[step][here], weights[0], out=total[:size])
            for lag in range(1, len(weights)):
                np.multiply(drawn[step - lag][here], weights[lag], out=term[:size])
                np.add(total[:size], term[:size], out=total[:size])
            out[low : low + size] += total[:size]


class Recurrent(Source):
    """Banded C: the strategy's own recurrence over its last outputs, which a checkpoint must carry."""

    def __init__(self, strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey) -> None:
        super().__init__(strategy, sizes, scale, key)
        self._kept = [np.zeros((strategy.memory, size), dtype=np.float32) for size in sizes]
        self._used = 0  # rows of `_kept` that hold something, before this step and after it
        self._used_after = 0

    def add(self, out: Floats, step: int, leaf: int, start: int) -> None:
        """Advance the recurrence block by block, so that scratch stays small; every element once a step."""
        for low in range(0, len(out), kernel.BLOCK):
            part = out[low : low + kernel.BLOCK]
            rows = self._kept[leaf][:, start + low : start + low + len(part)]
            z = kernel.normals(self.key.secret, step=step, leaf=leaf, start=start + low, count=len(part))
            z *= np.float32(self.scale)
            noise, (_, kept) = self.strategy.step(z, (step, tuple(rows[: self._used])))
            part += noise
            after = [np.array(row) for row in kept]  # copied first: they may be rows about to be overwritten
            for row, value in zip(rows, after):
                row[:] = value
            self._used_after = len(after)

    def finish(self, step: int) -> None:
        """Let the outputs of this step become the earlier ones."""
        self._used = self._used_after

    def buffers(self) -> list[list[Floats]]:
        """The last outputs of every leaf, newest first."""
        return [list(rows[: self._used]) for rows in self._kept]

    def rows(self, step: int) -> int:
        """As many as there have been steps, up to the recurrence's length."""
        return min(step, self.strategy.memory)

    def restore(self, buffers: list[list[Floats]]) -> None:
        """Take back the last outputs."""
        for rows, saved in zip(self._kept, buffers):
            for row, value in zip(rows, saved):
                row[:] = value
        self._used = self._used_after = len(buffers[0])


def choose_source(strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey) -> Source:
    """The cheapest way for this strategy: replay few taps, keep many, or follow a recurrence."""
    taps = strategy.taps(strategy.steps - 1)
    if taps is None:
        return Recurrent(strategy, sizes, scale, key)
    kind = Replayed if len(taps) <= REPLAYED_BANDS else Kept
    return kind(strategy, sizes, scale, key)
