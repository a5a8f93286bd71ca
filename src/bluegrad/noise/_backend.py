"""What carries out the noise kernel's arithmetic: compiled code for one instruction set, or NumPy. Same bits."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bluegrad import _checks
from bluegrad.noise import _cipher, _fallback
from bluegrad.noise._fallback import Float32s, Uint32s
from bluegrad.noise._program import Program

try:
    from bluegrad.noise import _native
except ImportError:  # installed without a compiler
    _native = None  # type: ignore[assignment]

VARIABLE = "BLUEGRAD_KERNEL"


class Backend(ABC):
    """Arithmetic on arrays that the caller has checked.

    Args:
        name: "fallback", or an instruction set.
        block: elements that one thread best handles at a time.
    """

    def __init__(self, name: str, block: int) -> None:
        self.name, self.block = name, block

    @abstractmethod
    def philox(self, counters: Uint32s, key: Uint32s) -> Uint32s:
        """Philox4x32-10 of every counter, shape (counters, 4), under one key of two words."""

    @abstractmethod
    def words(self, out: Uint32s, stream: Uint32s, start: int) -> None:
        """Write the stream's words from element `start` on to `out`."""

    @abstractmethod
    def accumulate(
        self, out: Float32s, factors: Float32s, streams: Uint32s, start: int, threads: int, block: int
    ) -> None:
        """Add sum_j factors[j] z_j(start + i) to out[i]; see the fallback for the order of operations."""

    @abstractmethod
    def advance(
        self, out: Float32s, rows: Float32s, program: Program, inputs: list[int], results: list[tuple[int, int]],
        stream: Uint32s, start: int, first: int, scale: float, threads: int,
    ) -> None:  # fmt: skip
        """Add the program's output to `out` and write its results, (row, register) each, to the rows.

        `start` is the number of the element at out[0], `first` of that in the rows' first column.
        """

    @abstractmethod
    def transform(self, first: Uint32s, second: Uint32s) -> tuple[Float32s, Float32s, Float32s]:
        """Radius of the first words, cosine and sine of the second."""

    @abstractmethod
    def cipher_normals(self, blocks: NDArray[np.uint64]) -> Float32s:
        """Normals of a cipher's blocks, shape (blocks, 2), rounded to float32, shape (2 blocks,)."""


class Fallback(Backend):
    """NumPy."""

    def __init__(self) -> None:
        super().__init__("fallback", _fallback.BLOCK)

    def philox(self, counters: Uint32s, key: Uint32s) -> Uint32s:
        """As `Backend.philox`."""
        return _fallback.philox(counters, key)

    def words(self, out: Uint32s, stream: Uint32s, start: int) -> None:
        """As `Backend.words`."""
        _fallback.words(out, stream, start)

    def accumulate(
        self, out: Float32s, factors: Float32s, streams: Uint32s, start: int, threads: int, block: int
    ) -> None:
        """As `Backend.accumulate`."""
        _fallback.accumulate(out, factors, streams, start, threads, block)

    def advance(
        self, out: Float32s, rows: Float32s, program: Program, inputs: list[int], results: list[tuple[int, int]],
        stream: Uint32s, start: int, first: int, scale: float, threads: int,
    ) -> None:  # fmt: skip
        """As `Backend.advance`."""

        def draw(z: Float32s, element: int) -> None:
            self.accumulate(z, np.array([scale], np.float32), stream[None], element, threads, self.block)

        _fallback.advance(out, rows, program, inputs, results, start, first, draw)

    def transform(self, first: Uint32s, second: Uint32s) -> tuple[Float32s, Float32s, Float32s]:
        """As `Backend.transform`."""
        return _fallback.transform(first, second)

    def cipher_normals(self, blocks: NDArray[np.uint64]) -> Float32s:
        """As `Backend.cipher_normals`."""
        return _cipher.box_muller(blocks).astype(np.float32)


class Native(Backend):
    """Compiled code for one instruction set."""

    def __init__(self, instruction_set: str) -> None:
        super().__init__(instruction_set, 1 << 14)

    def philox(self, counters: Uint32s, key: Uint32s) -> Uint32s:
        """As `Backend.philox`."""
        out = np.empty(counters.shape, np.uint32)
        _native.philox(np.ascontiguousarray(counters), key, out)
        return out

    def words(self, out: Uint32s, stream: Uint32s, start: int) -> None:
        """As `Backend.words`."""
        _native.words(out, stream, start, self.name)

    def accumulate(
        self, out: Float32s, factors: Float32s, streams: Uint32s, start: int, threads: int, block: int
    ) -> None:
        """As `Backend.accumulate`."""
        _native.accumulate(out, factors, streams, start, threads, block, self.name)

    def advance(
        self, out: Float32s, rows: Float32s, program: Program, inputs: list[int], results: list[tuple[int, int]],
        stream: Uint32s, start: int, first: int, scale: float, threads: int,
    ) -> None:  # fmt: skip
        """As `Backend.advance`."""
        _native.advance(
            out, start, rows, first, scale, stream, program.code, program.weights, np.array(inputs, np.int32),
            np.array(results, np.int32).reshape(-1), program.output, program.registers, threads, self.block, self.name,
        )  # fmt: skip

    def transform(self, first: Uint32s, second: Uint32s) -> tuple[Float32s, Float32s, Float32s]:
        """As `Backend.transform`."""
        radius, cosine, sine = (np.empty(first.shape, np.float32) for _ in range(3))
        _native.transform(first, second, radius, cosine, sine, self.name)
        return radius, cosine, sine

    def cipher_normals(self, blocks: NDArray[np.uint64]) -> Float32s:
        """As `Backend.cipher_normals`."""
        out = np.empty(blocks.size, np.float32)
        _native.cipher_normals(blocks.reshape(-1), out, self.name)
        return out


@lru_cache(maxsize=1)
def backends() -> dict[str, Backend]:
    """What this processor and this installation can run, by name, fastest first; "fallback" is always last."""
    found: list[Backend] = [] if _native is None else [Native(name) for name in _native.instruction_sets()]
    return {backend.name: backend for backend in [*found, Fallback()]}


def choose(name: str | None) -> Backend:
    """The backend of that name; for None the environment variable's, and the fastest where it isn't set.

    Raises:
        ValueError: this installation or processor has no such backend.
    """
    if name is None:
        return _usual()
    _checks.choice("backend", name, tuple(backends()))
    return backends()[name]


@lru_cache(maxsize=1)
def _usual() -> Backend:
    name = os.environ.get(VARIABLE) or next(iter(backends()))
    _checks.choice(f"environment variable {VARIABLE}", name, tuple(backends()))
    return backends()[name]
