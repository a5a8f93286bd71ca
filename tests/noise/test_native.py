"""Compiled noise kernels against the NumPy one: the same bits in every position, and against the scalar oracle."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bluegrad.noise import kernel
from bluegrad.noise.kernel import NOISE, SAMPLING, add_weighted_normals, backends, normals, words
from oracles import philox_oracle as oracle

KEY = bytes.fromhex("243f6a8885a308d313198a2e03707344")
COMPILED = [name for name in backends() if name != "fallback"]
pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing was compiled")
each_backend = pytest.mark.parametrize("name", COMPILED)


def bits(values):
    return values.view(np.uint32)


def weighted(backend, weights, *, count=100_003, step=9, start=1, scale=1.3, **options):
    """Noise added to something that isn't zero, so that the last sum rounds."""
    out = np.linspace(-3, 3, count, dtype=np.float32)
    add_weighted_normals(out, weights, key=KEY, step=step, leaf=3, start=start, scale=scale, backend=backend, **options)
    return bits(out)


starts = st.one_of(st.integers(0, 200), st.integers((1 << 34) - 200, (1 << 34) + 8), st.integers(0, (1 << 64) - 5000))
streams = st.fixed_dictionaries(
    {
        "key": st.binary(min_size=16, max_size=16),
        "step": st.one_of(st.integers(8, 20), st.integers(8, (1 << 32) - 1)),
        "leaf": st.integers(0, (1 << 24) - 1),
        "start": starts,
    }
)


@each_backend
class TestSameBits:
    @given(at=streams, count=st.integers(0, 700), domain=st.integers(0, 255))
    @settings(max_examples=60, deadline=None)
    def test_words(self, name, at, count, domain):
        mine, theirs = (words(domain=domain, count=count, backend=b, **at) for b in (name, "fallback"))
        np.testing.assert_array_equal(mine, theirs)

    @given(at=streams, count=st.integers(0, 700))
    @settings(max_examples=60, deadline=None)
    def test_normals(self, name, at, count):
        mine, theirs = (bits(normals(count=count, backend=b, **at)) for b in (name, "fallback"))
        np.testing.assert_array_equal(mine, theirs)

    @given(
        at=streams,
        count=st.integers(0, 700),
        weights=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9),
        scale=st.floats(-50, 50),
        threads=st.integers(1, 5),
        block=st.integers(4, 300),
    )
    @settings(max_examples=150, deadline=None)
    def test_weighted_sums(self, name, at, count, weights, scale, threads, block):
        out = np.random.default_rng(1).standard_normal((2, count), dtype=np.float32)
        out[1] = out[0]
        add_weighted_normals(out[0], weights, scale=scale, backend="fallback", **at)
        add_weighted_normals(out[1], weights, scale=scale, backend=name, threads=threads, block=block, **at)
        np.testing.assert_array_equal(*bits(out))

    def test_philox(self, name):
        rng = np.random.default_rng(2)
        counters, key = rng.integers(0, 1 << 32, (50, 4), dtype=np.uint32), rng.integers(0, 1 << 32, 2, np.uint32)
        expected = [oracle.philox(tuple(map(int, counter)), tuple(map(int, key))) for counter in counters]
        for backend in (name, "fallback"):
            assert backends()[backend].philox(counters, key).tolist() == [list(words) for words in expected]

    def test_words_are_the_oracle_s(self, name):
        for start in (0, 5, (1 << 34) - 3, (1 << 64) - 70):
            got = words(KEY, domain=SAMPLING, step=12, leaf=5, start=start, count=70, backend=name)
            assert got.tolist() == [oracle.word(KEY, SAMPLING, 12, 5, start + i) for i in range(70)]

    @pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1.0, 1e30, 1e36])
    def test_every_size_of_weights(self, name, size):
        weights = size * np.array([1.0, -0.5, 3e-5])
        assert (weighted(name, weights, count=999) == weighted("fallback", weights, count=999)).all()

    def test_nan_and_infinity_pass_through(self, name):
        out = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0] * 30, np.float32)
        again = out.copy()
        for backend, x in ((name, out), ("fallback", again)):
            add_weighted_normals(x, [1.0], key=KEY, step=0, leaf=0, start=0, scale=0.0, backend=backend)
        np.testing.assert_array_equal(bits(out), bits(again))
        assert np.isnan(out[::5]).all() and (out[1::5] == np.inf).all()

    def test_transform(self, name):
        rng = np.random.default_rng(3)
        near = np.arange(-700, 700)
        w = np.concatenate(
            [
                rng.integers(0, 1 << 32, 100_003),
                *(near + (k << 29) for k in range(8)),
                *(near + (0xB504F333 >> e) for e in range(32)),
            ]
        )
        w = (w % (1 << 32)).astype(np.uint32)
        for mine, theirs in zip(backends()[name].transform(w, w), backends()["fallback"].transform(w, w)):
            np.testing.assert_array_equal(bits(mine), bits(theirs))

    @pytest.mark.slow
    def test_transform_of_every_word(self, name):
        for first in range(0, 1 << 32, 1 << 22):
            w = np.arange(first, first + (1 << 22)).astype(np.uint32)
            for mine, theirs in zip(backends()[name].transform(w, w), backends()["fallback"].transform(w, w)):
                np.testing.assert_array_equal(bits(mine), bits(theirs))

    def test_a_changed_bit_is_seen(self, name):
        mine, theirs = weighted(name, [1.0], count=99), weighted("fallback", [np.nextafter(1, 2, dtype="f4")], count=99)
        assert (mine != theirs).any()


@each_backend
class TestPureFunction:
    def test_threads_and_blocks_change_no_bit(self, name):
        whole = weighted("fallback", [1.0, -0.9, 0.3])
        for threads, block in [(1, None), (2, 4096), (3, 1000), (16, 20_001), (40, 4), (None, None), (2, 1 << 40)]:
            np.testing.assert_array_equal(
                whole, weighted(name, [1.0, -0.9, 0.3], threads=threads, block=block), f"{threads}, {block}"
            )

    def test_a_range_across_the_counter_s_second_word(self, name):
        start = (1 << 34) - 50_001
        whole = weighted(name, [1.0, 0.5], start=start, threads=2, block=1 << 12)
        np.testing.assert_array_equal(whole, weighted("fallback", [1.0, 0.5], start=start))

    def test_writes_nowhere_else(self, name):
        for start in range(9):
            for count in range(70):
                out = np.full(count + 20, 7.0, np.float32)
                add_weighted_normals(
                    out[10 : 10 + count], [1.0], key=KEY, step=0, leaf=0, start=start, scale=1.0, backend=name
                )
                assert (out[:10] == 7).all() and (out[10 + count :] == 7).all()
                assert (out[10 : 10 + count] != 7).all()

    @pytest.mark.parametrize("threads", [1, 2])
    def test_subnormals_whatever_the_thread_was_set_to(self, name, threads):
        def draw():  # a normal weight times most normals is subnormal: torch can be told to flush such numbers to zero
            out = np.zeros(200_000, np.float32)
            add_weighted_normals(
                out, [1.2e-38], key=KEY, step=0, leaf=0, start=0, scale=1.0, backend=name, threads=threads
            )
            return bits(out)

        expected = draw()
        assert 0.6 < (expected << 1 < 2 << 23).mean() < 0.7
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor can't flush")
        try:
            got, flushed = draw(), (torch.tensor([1.2e-38]) / 2 == 0).all()
        finally:
            torch.set_flush_denormal(False)
        assert flushed
        np.testing.assert_array_equal(got, expected)


@each_backend
class TestThreads:
    def test_calls_from_several_threads(self, name):
        results, expected = {}, [weighted("fallback", [1.0, 0.5], step=s, count=200_000) for s in range(1, 9)]

        def draw(step):
            results[step] = [weighted(name, [1.0, 0.5], step=step, count=200_000, threads=3) for _ in range(5)]

        callers = [threading.Thread(target=draw, args=(step,)) for step in range(1, 9)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        for step, wanted in enumerate(expected, 1):
            assert len(results[step]) == 5
            for got in results[step]:
                np.testing.assert_array_equal(got, wanted)

    def test_the_interpreter_runs_on_meanwhile(self, name):
        out, done, turns = np.zeros(1 << 22, np.float32), threading.Event(), []

        def draw():
            add_weighted_normals(out, [1.0] * 8, key=KEY, step=9, leaf=0, start=0, scale=1.0, threads=1, backend=name)
            done.set()

        caller = threading.Thread(target=draw)
        caller.start()
        while not done.wait(1e-4):
            turns.append(1)
        caller.join()
        assert len(turns) > 3  # holding the lock, there would be none while it draws

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_fork(self, name):
        draw = lambda: weighted(name, [1.0, 0.5], count=300_000, threads=3).tobytes()  # noqa: E731
        expected = draw()
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # a deadlock ends the child, and so fails the test
            os._exit(0 if draw() == expected else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0 and draw() == expected


class TestChoice:
    def run(self, code, value):
        return subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "BLUEGRAD_KERNEL": value}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    @pytest.mark.parametrize("name", list(backends()))
    def test_the_environment_variable(self, name):
        done = self.run("from bluegrad.noise import kernel; print(kernel.choose(None).name)", name)
        assert done.stdout.strip() == name, done.stderr

    def test_an_unknown_backend(self):
        done = self.run("from bluegrad.noise import kernel; kernel.choose(None)", "sse9")
        assert "ValueError" in done.stderr and "BLUEGRAD_KERNEL" in done.stderr and "fallback" in done.stderr
        for call in (
            lambda: normals(KEY, step=0, leaf=0, start=0, count=1, backend="sse9"),
            lambda: words(KEY, domain=NOISE, step=0, leaf=0, start=0, count=1, backend="sse9"),
            lambda: weighted("sse9", [1.0]),
        ):
            with pytest.raises(ValueError, match=r"backend='sse9'.*fallback"):
                call()

    def test_the_fastest_comes_first(self):
        names = list(backends())
        assert names[-1] == "fallback" and "portable" in names
        wanted = [name for name in ("avx512", "avx2", "portable", "fallback") if name in names]
        assert names == wanted
        if "BLUEGRAD_KERNEL" not in os.environ:
            assert kernel.choose(None).name == names[0]
