"""Raw noise as a pure function of (key, step, leaf, element): Philox4x32-10 bits, Box-Muller normals.

The bits of a float32 normal are the same whatever the thread count, the block size, the slice asked for, the
process, the library version or the processor. So the arithmetic has a fixed order of integer operations,
conversions, and float32 +, -, *, sqrt, each rounded by itself as IEEE 754 says. Library logarithms and cosines,
and fused multiply-add, give other bits elsewhere and are never used. Compiled code for the processor's best
instruction set carries it out, or NumPy; the environment variable BLUEGRAD_KERNEL, read once, names another of
`backends()`.

Key schedule. The master key is 128 bits k0..k3, little-endian words. The stream of (domain, step, leaf) is the
Philox block with key (k0, k1) at counter (step, leaf + 2^24 domain, k2, k3). Philox is a bijection of the
counter, so under one master key distinct triples give distinct 128-bit outputs s0..s3. Then (s0, s1) is the
stream's own Philox key, and block b of the stream is its value at counter (b mod 2^32, b div 2^32, s2, s3).
Element e is word e mod 4 of block e div 4.

Philox is a statistical generator (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), not a cipher: it passes the statistical tests, yet nobody vouches for it against an adversary. A key of 32
bytes draws from AES-256 instead, see `_cipher`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bluegrad import _checks
from bluegrad.noise import _cipher, _fallback
from bluegrad.noise._backend import Backend, backends, choose
from bluegrad.noise._fallback import BLOCK, Float32s, Uint32s
from bluegrad.noise._program import Program

__all__ = [
    "BLOCK", "NOISE", "SAMPLING", "Float32s", "Uint32s", "add_weighted_normals", "advance", "backends", "choose",
    "default_threads", "normals", "philox4x32", "words",
]  # fmt: skip

NOISE, SAMPLING = 0, 1  # domains
KEY_BYTES = 16  # of Philox
_MOST_THREADS = 16


def philox4x32(counter_words: ArrayLike, key_words: Sequence[int]) -> Uint32s:
    """Philox4x32-10 of every counter under one key.

    Args:
        counter_words: 32-bit words of the counters, lowest first, shape (..., 4).
        key_words: two 32-bit words.

    Returns:
        Random words, uint32, the shape of `counter_words`.

    Raises:
        ValueError: a last axis that isn't 4 long, a key that isn't two words, or a word outside [0, 2^32).

    >>> [f"{word:08x}" for word in philox4x32([0, 0, 0, 0], (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    counters = np.asarray(counter_words)
    if counters.ndim == 0 or counters.shape[-1] != 4 or counters.dtype.kind not in "iu":
        raise _checks.fail("counter_words", counters, "must be integers of shape (..., 4)", "give four words each")
    if counters.size and not 0 <= counters.min() <= counters.max() < 1 << 32:
        raise _checks.fail("counter_words", counters, "must lie in [0, 2^32)", "split large counters into words")
    if len(key_words) != 2:
        raise _checks.fail("len(key_words)", len(key_words), "must be 2", "give the two words of a key")
    key = np.array([_bits("key_words", word, 32) for word in key_words], np.uint32)
    return choose(None).philox(counters.reshape(-1, 4).astype(np.uint32), key).reshape(counters.shape)


def words(
    key: bytes, *, domain: int, step: int, leaf: int, start: int, count: int, backend: str | None = None
) -> Uint32s:
    """Random words of one stream at elements start, ..., start + count - 1.

    Args:
        key: the master key, 16 bytes for Philox or 32 for AES-256.
        domain: what the words are for, `NOISE` or `SAMPLING`; below 2^8.
        step: training step, below 2^32.
        leaf: index of the parameter, below 2^24.
        start: first element, with start + count at most 2^64.
        count: number of elements.
        backend: a name out of `backends()`, None for the usual one.

    Returns:
        Random words, uint32, shape (count,).

    Raises:
        ValueError: a key that isn't 16 or 32 bytes, an integer out of its range, or no such backend.
    """
    start, count = _range(start, count)
    chosen = choose(backend)
    step, secure = _bits("step", step, 32), _check(key, domain, leaf)
    out = np.empty(count, np.uint32)
    if secure:
        _cipher.words(out, key, domain, step, leaf, start)
    else:
        chosen.words(out, _streams(chosen, key, domain, [step], leaf)[0], start)
    return out


def normals(key: bytes, *, step: int, leaf: int, start: int, count: int, backend: str | None = None) -> Float32s:
    """Standard normals of one noise stream at elements start, ..., start + count - 1.

    Words (w0, w1) of a block give (z0, z1) and (w2, w3) give (z2, z3): radius sqrt(-2 ln u) with
    u = w0 2^-32 + 2^-33 in float32, so never beyond 6.77, and angle 2 pi w1 / 2^32 (Box and Muller 1958).

    Args:
        key, step, leaf, start, count, backend: as in `words`.

    Returns:
        Standard normals, float32, shape (count,).

    Raises:
        ValueError: a key that isn't 16 or 32 bytes, an integer out of its range, or no such backend.

    >>> [float(z).hex() for z in normals(bytes(16), step=0, leaf=0, start=0, count=1)]
    ['-0x1.0c46d60000000p-2']
    """
    out = np.zeros(_range(start, count)[1], np.float32)
    add_weighted_normals(out, [1.0], key=key, step=step, leaf=leaf, start=start, scale=1.0, backend=backend)
    return out


def add_weighted_normals(
    out: Float32s,
    weights: ArrayLike,
    *,
    key: bytes,
    step: int,
    leaf: int,
    start: int,
    scale: float,
    threads: int | None = None,
    block: int | None = None,
    backend: str | None = None,
) -> None:
    """Add scale * sum_j weights[j] * z(step - j, leaf, start + i) to out[i], in place.

    Order of operations, all float32: v_j = weights[j] * scale in float64, then rounded; acc = v_0 z_0;
    acc += v_1 z_1; ...; out += acc. Neither `threads`, `block` nor `backend` changes a bit of the result.

    Args:
        out: float32, shape (elements,), contiguous; one leaf or a slice of it.
        weights: taps, newest first, shape (taps,) with taps at most step + 1.
        key: the master key, 16 bytes for Philox or 32 for AES-256.
        step: step of the newest noise, below 2^32.
        leaf: index of the parameter, below 2^24.
        start: element of the leaf that out[0] is, with start + elements at most 2^64.
        scale: common factor of all weights.
        threads: most threads to use; None for `default_threads()`.
        block: elements handled at a time, rounded down to a multiple of 4; None for what suits the backend.
        backend: as in `words`.

    Raises:
        ValueError: `out` isn't a writeable contiguous float32 vector, a tap reaches before step 0, weights
            too large for float32, a key that isn't 16 or 32 bytes, an integer out of its range, or no such backend.
    """
    _vector(out)
    step = _bits("step", step, 32)
    factors = _factors(weights, scale)
    if len(factors) > step + 1:
        raise _checks.fail("len(weights)", len(factors), f"must be at most step + 1 = {step + 1}", "drop early taps")
    start, _ = _range(start, len(out))
    chosen = choose(backend)
    secure, steps, threads = _check(key, NOISE, leaf), [step - j for j in range(len(factors))], _threads(threads)
    size = chosen.block if block is None else block
    size = _checks.integer("block", size, minimum=4, fix="give a number of elements, or None for the usual")
    if secure:
        _cipher.accumulate(out, factors, key, NOISE, steps, leaf, start, threads, chosen.cipher_normals)
    else:
        streams = _streams(chosen, key, NOISE, steps, leaf)
        chosen.accumulate(out, factors, streams, start, threads, size // 4 * 4)


def advance(
    out: Float32s,
    rows: Float32s,
    program: Program,
    inputs: list[int],
    results: list[tuple[int, int]],
    *,
    key: bytes,
    step: int,
    leaf: int,
    start: int,
    scale: float,
    first: int = 0,
    threads: int | None = None,
    backend: str | None = None,
) -> None:
    """Run a recurrence's step over new noise scale * z(step, leaf) and rows; add its output to `out`, in place.

    Args:
        out: float32, shape (elements,), contiguous; one leaf or a slice of it.
        rows: what the recurrence keeps of the leaf's elements from `first` on, float32, shape (rows, elements),
            contiguous.
        program: the step.
        inputs: rows that it reads.
        results: (row, register) of what is kept after the step.
        key, step, leaf, start, scale, threads, backend: as in `add_weighted_normals`; start is out[0]'s element.
        first: the element in the rows' first column.

    Raises:
        ValueError: as `add_weighted_normals`.
    """
    _vector(out)
    start, count = _range(start, len(out))
    assert 0 <= first <= start and rows.shape[1] >= start - first + count and len(inputs) == program.inputs
    chosen = choose(backend)
    step, secure, most = _bits("step", step, 32), _check(key, NOISE, leaf), _threads(threads)
    factors = _factors([1.0], scale)
    if not secure:
        (stream,) = _streams(chosen, key, NOISE, [step], leaf)
        chosen.advance(out, rows, program, inputs, results, stream, start, first, float(factors[0]), most)
        return

    def draw(z: Float32s, element: int) -> None:
        _cipher.accumulate(z, factors, key, NOISE, [step], leaf, element, most, chosen.cipher_normals)

    _fallback.advance(out, rows, program, inputs, results, start, first, draw)


def default_threads() -> int:
    """One for each processor that this process may use, at most 16."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MOST_THREADS)


def _threads(threads: int | None) -> int:
    most = default_threads() if threads is None else threads
    return _checks.integer("threads", most, minimum=1, fix="give the number of threads, or None for all")


def _check(key: bytes, domain: int, leaf: int) -> bool:
    """Refuse what names no stream; return whether the key is a cipher's."""
    if not isinstance(key, bytes) or len(key) not in (KEY_BYTES, _cipher.KEY_BYTES):
        # The key is secret: its value never enters a message.
        raise _checks.fail(
            "key", type(key).__name__, "must be 16 bytes, or 32 for the cipher",
            "take them from the system's secure source",
        )  # fmt: skip
    _bits("leaf", leaf, 24)
    _bits("domain", domain, 8)
    return len(key) == _cipher.KEY_BYTES


def _streams(backend: Backend, key: bytes, domain: int, steps: list[int], leaf: int) -> Uint32s:
    """Key schedule: words s0..s3 of one stream for each step, shape (steps, 4)."""
    k0, k1, k2, k3 = (int.from_bytes(key[i : i + 4], "little") for i in range(0, 16, 4))
    counters = np.array([(step, leaf | domain << 24, k2, k3) for step in steps], np.uint32)
    return backend.philox(counters, np.array([k0, k1], np.uint32))


def _bits(name: str, value: int, bits: int) -> int:
    """Return an integer in [0, 2^bits)."""
    whole = _checks.integer(name, value, minimum=0, fix=f"give an integer below 2^{bits}")
    if whole >> bits:
        raise _checks.fail(name, value, f"must be below 2^{bits}", "give a smaller integer")
    return whole


def _range(start: int, count: int) -> tuple[int, int]:
    """Return (start, count), a range of elements within one leaf."""
    start = _checks.integer("start", start, minimum=0, fix="give the first element's index")
    count = _checks.integer("count", count, minimum=0, fix="give the number of elements")
    if start + count > 1 << 64:
        raise _checks.fail("start + count", start + count, "must be at most 2^64", "a leaf has no more elements")
    return start, count


def _factors(weights: ArrayLike, scale: float) -> Float32s:
    """Return weights * scale, rounded to float32 once."""
    scale = _checks.real("scale", scale, fix="give the common factor of the weights")
    taps = _checks.vector("weights", weights, fix="give the weight of the newest noise first")
    size = float(np.abs(taps).sum()) * abs(scale)
    if not size < 2.0**124:  # times a normal of at most 6.77 this stays finite
        raise _checks.fail("sum of |weights| * scale", size, "must be below 2^124", "use a smaller scale")
    return (taps * scale).astype(np.float32)


def _vector(out: Float32s) -> None:
    """Refuse anything but a writeable contiguous float32 vector."""
    vector = isinstance(out, np.ndarray) and out.dtype == np.float32 and out.ndim == 1
    if not vector or not out.flags.c_contiguous or not out.flags.writeable:
        what = (out.dtype.name, out.shape) if isinstance(out, np.ndarray) else type(out).__name__
        raise _checks.fail("out", what, "must be a writeable contiguous float32 vector", "flatten and copy it first")
