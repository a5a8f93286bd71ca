"""Recurrences as programs: what tracing finds, that every kernel runs it with the same bits, and in any pieces."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bluegrad as bg
from bluegrad.noise import kernel
from bluegrad.noise._program import MINUS, PLUS, TIMES, trace

KEY = bytes(range(16))


def general_bands(n, bands):
    return [[0.5**i * (1 + j % 3) if i + j < n else 0.0 for i in range(bands)] for j in range(n)]


NAMES = list(kernel.backends())
RECURRENT = {
    "banded C": lambda: bg.toeplitz([1.5, 0.6, 0.3, 0.1], 12),
    "general bands": lambda: bg.banded(general_bands(12, 3)),
    "buffers": lambda: bg.buffered_toeplitz(12, [0.99, 0.9, 0.4], [0.1, 0.15, 0.2]),
    "tree": lambda: bg.tree_aggregation(12),
    "tree, full": lambda: bg.tree_aggregation(12, decoder="full"),
    "stamped": lambda: bg.stamped(bg.toeplitz([1.0, 0.5, 0.25], 4), 3),
    "column-normalised": lambda: bg.column_normalized(bg.toeplitz([1.0, 0.5, 0.25], 12)),
}  # fmt: skip


def bits(values):
    return values.view(np.uint32)


class TestTrace:
    def test_a_sum_takes_products_in(self):
        program = trace(lambda z, rows: (z - 0.5 * rows[0] + rows[1] * 0.25, (z, rows[0])), 2)
        assert program.code[:, 0].tolist() == [MINUS, PLUS]
        assert program.weights.tolist() == [0.5, 0.25] and program.kept == (0, 1)
        assert program.registers == 4  # the second sum takes the first's place

    def test_a_value_in_use_keeps_its_place(self):
        def step(z, rows):
            y = z - rows[0]
            return 2.0 * y, (y, y + rows[0])

        program = trace(step, 1)
        z, row = np.float32([1.0, 5.0]), np.float32([0.25, 0.5])
        at = program.run(z, [row])
        assert at[program.output].tolist() == [1.5, 9.0]
        assert [at[i].tolist() for i in program.kept] == [[0.75, 4.5], [1.0, 5.0]]

    def test_products_of_products_and_quotients(self):
        program = trace(lambda z, rows: ((3.0 * z) * np.float64(2.0) / 4.0, ()), 0)
        assert program.run(np.float32([2.0]), [])[program.output].tolist() == [3.0]
        assert set(program.code[:, 0].tolist()) == {TIMES}

    def test_passing_on_is_no_work(self):
        program = trace(lambda z, rows: (z, rows[::-1]), 3)
        assert program.code.shape == (0, 4) and program.kept == (3, 2, 1) and program.output == 0

    @pytest.mark.parametrize("name", RECURRENT)
    def test_every_recurrence_traced_is_the_recurrence(self, name):
        strategy, rng = RECURRENT[name](), np.random.default_rng(4)
        state = strategy.init()
        for t in range(strategy.steps):
            z, (_, rows) = rng.standard_normal(7), state

            def take(z, rows, t=t):
                noise, (_, kept) = strategy.step(z, (t, rows))
                return noise, kept

            program = trace(take, len(rows))
            noise, state = strategy.step(z, state)
            at = program.run(z, rows)
            np.testing.assert_allclose(at[program.output], noise, rtol=1e-6, atol=1e-6)
            for register, row in zip(program.kept, state[1]):
                np.testing.assert_allclose(at[register], row, rtol=1e-6, atol=1e-6)


def advanced(backend, program, inputs, results, *, leaf_size=3000, start=0, count=3000, threads=1, pieces=1):
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((4, leaf_size)).astype(np.float32)
    out = rng.standard_normal(count).astype(np.float32)
    edges = np.linspace(0, count, pieces + 1).astype(int)
    for low, high in pairwise(edges):
        kernel.advance(
            out[low:high], rows, program, inputs, results, key=KEY, step=3, leaf=1, start=start + int(low), scale=1.3,
            threads=threads, backend=backend,
        )  # fmt: skip
    return out, rows


def step(z, rows):
    y = (z - 0.7 * rows[0] - 0.3 * rows[1]) / 1.7
    return y, (y, 0.9 * rows[1] + y, z)


PROGRAM = trace(step, 2)
RESULTS = list(zip([0, 3, 1], PROGRAM.kept))


class TestAdvance:
    @given(count=st.integers(0, 9000), start=st.integers(0, 50), threads=st.integers(1, 4), pieces=st.integers(1, 4))
    @settings(max_examples=40, deadline=None)
    def test_same_bits_everywhere(self, count, start, threads, pieces):
        size = start + count + 7
        expected = advanced("fallback", PROGRAM, [2, 0], RESULTS, leaf_size=size, start=start, count=count)
        for name in NAMES:
            got = advanced(
                name, PROGRAM, [2, 0], RESULTS, leaf_size=size, start=start, count=count, threads=threads, pieces=pieces
            )
            for x, y in zip(expected, got):
                np.testing.assert_array_equal(bits(x), bits(y))

    @pytest.mark.parametrize("name", NAMES)
    def test_against_float64(self, name):
        out, rows = advanced(name, PROGRAM, [2, 0], RESULTS)
        z = 1.3 * kernel.normals(KEY, step=3, leaf=1, start=0, count=3000).astype(float)
        rng = np.random.default_rng(5)
        before = rng.standard_normal((4, 3000)).astype(np.float32).astype(float)
        noise, kept = step(z, (before[2], before[0]))
        np.testing.assert_allclose(out, rng.standard_normal(3000).astype(np.float32) + noise, atol=3e-6)
        for row, value in zip([0, 3, 1], kept):
            np.testing.assert_allclose(rows[row], value, atol=3e-6)
        np.testing.assert_array_equal(rows[2], before[2].astype(np.float32))

    @pytest.mark.parametrize("name", NAMES)
    def test_many_threads_on_a_large_leaf(self, name):
        one = advanced(name, PROGRAM, [2, 0], RESULTS, leaf_size=400_003, count=400_003)
        many = advanced(name, PROGRAM, [2, 0], RESULTS, leaf_size=400_003, count=400_003, threads=7)
        for x, y in zip(one, many):
            np.testing.assert_array_equal(bits(x), bits(y))
