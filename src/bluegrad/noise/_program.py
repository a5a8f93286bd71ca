"""A step of a linear recurrence as a short list of vector operations, found by running the strategy's step once.

Registers hold vectors: 0 the new noise, then the inputs, then intermediate values. Each instruction is one of

    register = weight x,    register = x + weight y,    register = x - weight y

in float32, product and sum each rounded. A division is a product with the rounded reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TIMES, PLUS, MINUS = 0, 1, 2
_Stepped = tuple[Any, Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Program:
    """What one step does to every element.

    Args:
        code: rows of (operation, register written, x, y), shape (instructions, 4); x is of no use to `TIMES`.
        weights: of the instructions, shape (instructions,).
        inputs: how many rows it reads.
        registers: how many there are.
        output: register of the step's noise.
        kept: registers of the rows after the step.
    """

    code: NDArray[np.int32]
    weights: NDArray[np.float32]
    inputs: int
    registers: int
    output: int
    kept: tuple[int, ...]

    def run(self, z: Any, rows: Sequence[Any]) -> list[Any]:
        """All registers at the end, for new noise and rows that are arrays or tensors."""
        at: list[Any] = [z, *rows, *[None] * (self.registers - 1 - self.inputs)]
        for (operation, to, x, y), weight in zip(self.code.tolist(), self.weights.tolist()):
            product = weight * at[y]
            at[to] = product if operation == TIMES else at[x] + product if operation == PLUS else at[x] - product
        return at


def trace(step: Callable[[Any, tuple[Any, ...]], _Stepped], inputs: int) -> Program:
    """The program of `step(z, rows) -> (noise, kept)`, which may use +, - and products with numbers."""
    tape = _Tape(inputs)
    z, *rows = (_Value(tape, register) for register in range(1 + inputs))
    noise, kept = step(z, tuple(rows))
    ends = [noise.register(), *(value.register() for value in kept)]
    place, registers = _share(tape.code, set(ends), 1 + inputs)
    code = [(operation, place[to], place[x], place[y]) for operation, to, x, y in tape.code]
    return Program(
        np.array(code, np.int32).reshape(-1, 4), np.array(tape.weights, np.float32), inputs, registers,
        place[ends[0]], tuple(place[end] for end in ends[1:]),
    )  # fmt: skip


def _share(code: list[tuple[int, int, int, int]], ends: set[int], first: int) -> tuple[list[int], int]:
    """A place for every register and their number, where values from `first` on share places once they are dead."""
    last = {register: at for at, (_, _, x, y) in enumerate(code) for register in (x, y)}
    place, free, places = list(range(first)), list[int](), first
    for at, (_, _, x, y) in enumerate(code):
        for register in {x, y}:
            if register >= first and last[register] == at and register not in ends:
                free.append(place[register])
        place.append(free.pop() if free else places)
        places = max(places, place[-1] + 1)
    return place, places


class _Tape:
    """Instructions so far."""

    def __init__(self, inputs: int) -> None:
        self.code: list[tuple[int, int, int, int]] = []
        self.weights: list[float] = []
        self.registers = 1 + inputs

    def write(self, operation: int, x: int, y: int, weight: float) -> int:
        register, self.registers = self.registers, self.registers + 1
        self.code.append((operation, register, x, y))
        self.weights.append(weight)
        return register


class _Value:
    """A register, times a weight whose product is written down only where a sum can't take it in."""

    __array_ufunc__ = None  # a NumPy number on the left leaves the product to us

    def __init__(self, tape: _Tape, register: int, weight: float | None = None) -> None:
        self.tape, self._register, self.weight = tape, register, weight

    def register(self) -> int:
        if self.weight is not None:
            self._register, self.weight = self.tape.write(TIMES, self._register, self._register, self.weight), None
        return self._register

    def __mul__(self, weight: float) -> _Value:
        return self if weight == 1.0 else _Value(self.tape, self.register(), float(weight))

    __rmul__ = __mul__

    def __truediv__(self, weight: float) -> _Value:
        return self * (1.0 / float(weight))

    def __add__(self, other: _Value) -> _Value:
        if self.weight is not None and other.weight is None:
            return other + self
        return self._sum(PLUS, other)

    def __sub__(self, other: _Value) -> _Value:
        return self._sum(MINUS, other)

    def _sum(self, operation: int, other: _Value) -> _Value:
        weight = 1.0 if other.weight is None else other.weight
        return _Value(self.tape, self.tape.write(operation, self.register(), other._register, weight))
