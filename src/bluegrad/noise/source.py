"""Three ways to form a row of L Z, chosen by what the strategy's structure makes cheapest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bluegrad.noise import kernel
from bluegrad.noise.key import NoiseKey
from bluegrad.noise.place import Floats, Place
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import REPLAYED_BANDS


class Source(ABC):
    """Scaled noise of the step at hand; every leaf of a step is added in full before `finish`."""

    def __init__(
        self, strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        self.strategy, self.sizes, self.scale, self.key, self.places = strategy, sizes, scale, key, places

    @abstractmethod
    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Add elements start .. start + len(out) of the leaf's noise to `out`, in place.

        `out` is a float32 array, or a tensor where the leaf's place is its device.
        """

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

    def _normals(self, step: int, leaf: int, start: int, count: int) -> Floats:
        return kernel.normals(self.key.secret, step=step, leaf=leaf, start=start, count=count)

    def _weights(self, step: int) -> NDArray[np.float64]:
        weights = self.strategy.taps(step)
        assert weights is not None
        return weights


class Replayed(Source):
    """Few taps: earlier noise is drawn again in every step, nothing is kept."""

    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Draw and sum all taps."""
        noise = out if isinstance(out, np.ndarray) else np.zeros(len(out), dtype=np.float32)
        kernel.add_weighted_normals(
            noise, self._weights(step), key=self.key.secret, step=step, leaf=leaf, start=start, scale=self.scale
        )
        if noise is not out:
            out += self.places[leaf].bring(noise)


class Kept(Source):
    """Many taps: raw noise is kept as long as a row may need it; what is missing after a resume is drawn again."""

    def __init__(
        self, strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        super().__init__(strategy, sizes, scale, key, places)
        self._slots = strategy.memory + 1
        self._drawn = [place.zeros(self._slots, size) for place, size in zip(places, sizes)]
        self._next = [0 for _ in sizes]  # the first step whose noise hasn't been drawn

    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Sum all taps block by block, in the kernel's order: first the newest, then into `out`."""
        rows, place = self._drawn[leaf], self.places[leaf]
        weights = [float(weight) for weight in (self._weights(step) * self.scale).astype(np.float32)]
        for missing in range(max(self._next[leaf], step - len(weights) + 1), step + 1):
            rows[missing % self._slots] = place.bring(self._normals(missing, leaf, 0, self.sizes[leaf]))
        self._next[leaf] = step + 1
        for low in range(0, len(out), place.block):
            part = out[low : low + place.block]
            here = slice(start + low, start + low + len(part))
            total = rows[step % self._slots, here] * weights[0]
            for lag in range(1, len(weights)):
                total += rows[(step - lag) % self._slots, here] * weights[lag]
            part += total


class Recurrent(Source):
    """The strategy's own recurrence over few arrays, which a checkpoint must carry."""

    def __init__(
        self, strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        super().__init__(strategy, sizes, scale, key, places)
        self._kept = [place.zeros(strategy.memory, size) for place, size in zip(places, sizes)]
        self._used = 0  # rows of `_kept` that hold something before this step

    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Advance the recurrence block by block, so that scratch stays small; every element once a step."""
        place = self.places[leaf]
        block = max(kernel.BLOCK, min(place.block, len(out)))
        for low in range(0, len(out), block):
            part = out[low : low + block]
            rows = self._kept[leaf][:, start + low : start + low + len(part)]
            z = place.bring(self._normals(step, leaf, start + low, len(part)) * np.float32(self.scale))
            noise, (_, kept) = self.strategy.step(z, (step, tuple(rows[: self._used])))
            part += noise
            # copied first: they may be rows about to be overwritten
            after = [1.0 * row for row in kept[: self.rows(step + 1)]]
            for row, value in zip(rows, after):
                row[:] = value

    def finish(self, step: int) -> None:
        """Let the outputs of this step become the earlier ones."""
        self._used = self.rows(step + 1)

    def buffers(self) -> list[list[Floats]]:
        """The recurrence's arrays of every leaf."""
        return [[place.give(row) for row in rows[: self._used]] for place, rows in zip(self.places, self._kept)]

    def rows(self, step: int) -> int:
        """As many as the recurrence needs after so many steps; none after the last."""
        return self.strategy.kept(step) if step < self.strategy.steps else 0

    def restore(self, buffers: list[list[Floats]]) -> None:
        """Take back the recurrence's arrays."""
        for place, rows, saved in zip(self.places, self._kept, buffers):
            for row, value in zip(rows, saved):
                row[:] = place.bring(value)
        self._used = len(buffers[0])


def choose_source(
    strategy: Strategy, sizes: Sequence[int], scale: float, key: NoiseKey, places: Sequence[Place]
) -> Source:
    """The cheapest way for this strategy: replay few taps, keep many, or follow a recurrence."""
    taps = strategy.taps(strategy.steps - 1)
    if taps is None:
        return Recurrent(strategy, sizes, scale, key, places)
    kind = Replayed if len(taps) <= REPLAYED_BANDS else Kept
    return kind(strategy, sizes, scale, key, places)
