"""Three ways to form a row of L Z, chosen by what the strategy's structure makes cheapest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bluegrad.noise import kernel
from bluegrad.noise._program import Program, trace
from bluegrad.noise.key import NoiseKey
from bluegrad.noise.place import Floats, Place
from bluegrad.strategy import Strategy
from bluegrad.strategy.base import REPLAYED_BANDS, weighted_sum


@dataclass(frozen=True)
class Plan:
    """A step: rows it reads, what it does, (row, register) of what it keeps, and the new noise's scale.

    `after` is the row of each array of a recurrence's state after the step.
    """

    program: Program
    inputs: list[int]
    results: list[tuple[int, int]]
    scale: float
    after: list[int] = field(default_factory=list)


class Source(ABC):
    """Scaled noise of the step at hand, for a range of each leaf's elements, all of which is added before `finish`."""

    def __init__(
        self, strategy: Strategy, spans: Sequence[range], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        self.strategy, self.spans, self.scale, self.key, self.places = strategy, spans, scale, key, places

    @abstractmethod
    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Add elements start .. start + len(out) of the leaf's noise, within its span, to `out`, in place.

        `out` is a float32 array, or a tensor where the leaf's place is its device.
        """

    def finish(self, step: int) -> None:  # noqa: B027 - most sources have nothing to drop
        """Drop what only this step needed."""

    def buffers(self) -> list[list[Floats]]:
        """What can't be drawn again, a list of arrays a leaf."""
        return [[] for _ in self.spans]

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


class Stepping(Source):
    """Rows of every leaf, and a step that is the same short program for all elements."""

    _rows: list[Any]

    def __init__(
        self, strategy: Strategy, spans: Sequence[range], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        super().__init__(strategy, spans, scale, key, places)
        self._planned: tuple[int, Plan] | None = None

    def _plan(self, step: int) -> Plan:
        if self._planned is None or self._planned[0] != step:
            self._planned = step, self._make_plan(step)
        return self._planned[1]

    @abstractmethod
    def _make_plan(self, step: int) -> Plan:
        """What this step reads, does and keeps."""

    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Draw the new noise, take the step and keep its results; every element once a step."""
        plan, rows = self._plan(step), self._rows[leaf]
        if isinstance(rows, np.ndarray):
            kernel.advance(
                out, rows, plan.program, plan.inputs, plan.results, key=self.key.secret, step=step, leaf=leaf,
                start=start, first=self.spans[leaf].start, scale=plan.scale,
            )  # fmt: skip
            return
        drawn: Floats = np.zeros(len(out), np.float32)
        kernel.add_weighted_normals(
            drawn, [1.0], key=self.key.secret, step=step, leaf=leaf, start=start, scale=plan.scale
        )
        column = start - self.spans[leaf].start
        here = slice(column, column + len(out))
        at = plan.program.run(self.places[leaf].bring(drawn), [rows[row, here] for row in plan.inputs])
        out += at[plan.program.output]
        for row, register in plan.results:
            rows[row, here] = at[register]


class Kept(Stepping):
    """Many taps: raw noise is kept as long as a row may need it; what is missing after a resume is drawn again."""

    def __init__(
        self, strategy: Strategy, spans: Sequence[range], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        super().__init__(strategy, spans, scale, key, places)
        self._slots = strategy.memory + 1
        self._rows = [place.zeros(self._slots, len(span)) for place, span in zip(places, spans)]
        self._next = [0 for _ in spans]  # the first step whose noise hasn't been drawn

    def _make_plan(self, step: int) -> Plan:
        weights = (self._weights(step) * self.scale).astype(np.float32).astype(np.float64)
        program = trace(lambda z, rows: (weighted_sum(weights, (z, *rows)), (z,)), len(weights) - 1)
        inputs = [(step - lag) % self._slots for lag in range(1, len(weights))]
        return Plan(program, inputs, [(step % self._slots, program.kept[0])], 1.0)

    def add(self, out: Any, step: int, leaf: int, start: int) -> None:
        """Sum all taps in the kernel's order: from the newest, then into `out`."""
        rows, place, span = self._rows[leaf], self.places[leaf], self.spans[leaf]
        for missing in range(max(self._next[leaf], step - self._plan(step).program.inputs), step):
            rows[missing % self._slots] = place.bring(self._normals(missing, leaf, span.start, len(span)))
        self._next[leaf] = step
        super().add(out, step, leaf, start)

    def finish(self, step: int) -> None:
        """This step's noise is now kept in full."""
        self._next = [step + 1 for _ in self.spans]


class Recurrent(Stepping):
    """The strategy's own recurrence over few arrays, which a checkpoint must carry."""

    def __init__(
        self, strategy: Strategy, spans: Sequence[range], scale: float, key: NoiseKey, places: Sequence[Place]
    ) -> None:
        super().__init__(strategy, spans, scale, key, places)
        self._rows = [place.zeros(strategy.memory, len(span)) for place, span in zip(places, spans)]
        self._order: list[int] = []  # which row each array of the recurrence's state is

    def _make_plan(self, step: int) -> Plan:
        def advance(z: Any, rows: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
            noise, (_, kept) = self.strategy.step(z, (step, rows))
            return noise, kept[: self.rows(step + 1)]

        program = trace(advance, len(self._order))
        # an array that the step only passes on stays in its row
        stay = {register: self._order[register - 1] for register in program.kept if 0 < register <= program.inputs}
        free = iter([row for row in range(self.strategy.memory) if row not in stay.values()])
        after = [stay.pop(register) if register in stay else next(free) for register in program.kept]
        results = [
            (row, register)
            for row, register in zip(after, program.kept)
            if not (0 < register <= program.inputs and row == self._order[register - 1])
        ]
        return Plan(program, self._order, results, self.scale, after)

    def finish(self, step: int) -> None:
        """Let what this step kept become the state."""
        self._order = self._plan(step).after

    def buffers(self) -> list[list[Floats]]:
        """The recurrence's arrays of every leaf."""
        return [[place.give(rows[row]) for row in self._order] for place, rows in zip(self.places, self._rows)]

    def rows(self, step: int) -> int:
        """As many as the recurrence needs after so many steps; none after the last."""
        return self.strategy.kept(step) if step < self.strategy.steps else 0

    def restore(self, buffers: list[list[Floats]]) -> None:
        """Take back the recurrence's arrays."""
        for place, rows, saved in zip(self.places, self._rows, buffers):
            for row, value in enumerate(saved):
                rows[row] = place.bring(value)
        self._order = list(range(len(buffers[0])))


def choose_source(
    strategy: Strategy, spans: Sequence[range], scale: float, key: NoiseKey, places: Sequence[Place]
) -> Source:
    """The cheapest way for this strategy: replay few taps, keep many, or follow a recurrence."""
    taps = strategy.taps(strategy.steps - 1)
    if taps is None:
        return Recurrent(strategy, spans, scale, key, places)
    kind = Replayed if len(taps) <= REPLAYED_BANDS else Kept
    return kind(strategy, spans, scale, key, places)
