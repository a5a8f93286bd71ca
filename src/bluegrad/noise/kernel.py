"""Raw noise as a pure function of (key, step, leaf, element): Philox4x32-10 bits, Box-Muller normals.

The bits of a float32 normal are the same whatever the thread count, the block size, the slice asked for, the
process, the library version or the processor. So the arithmetic has a fixed order of integer operations,
conversions, and float32 +, -, *, sqrt, each rounded by itself as IEEE 754 says. Library logarithms and cosines,
and fused multiply-add, give other bits elsewhere and are never used.

Key schedule. The master key is 128 bits k0..k3, little-endian words. The stream of (domain, step, leaf) is the
Philox block with key (k0, k1) at counter (step, leaf + 2^24 domain, k2, k3). Philox is a bijection of the
counter, so under one master key distinct triples give distinct 128-bit outputs s0..s3. Then (s0, s1) is the
stream's own Philox key, and block b of the stream is its value at counter (b mod 2^32, b div 2^32, s2, s3).
Element e is word e mod 4 of block e div 4.

Philox is a statistical generator (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011), not a cipher: it passes the statistical tests, yet nobody vouches for it against an adversary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bluegrad import _checks

Float32s = NDArray[np.float32]
Uint32s = NDArray[np.uint32]

NOISE, SAMPLING = 0, 1  # domains

# Elements that one thread handles at a time. Scratch is 120 bytes a Philox block, 4 MB in all: below this size
# threads wait for each other, since the interpreter's lock is taken between any two array operations.
BLOCK = 1 << 17
_MOST_THREADS = 16

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.arange(_ROUNDS, dtype=np.uint64)[:, None, None] * np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_WORD = np.uint64(32)
_LOW_WORD = np.uint64(0xFFFFFFFF)

# -2 ln(1 + f) = f (c0 + c1 f + ... + c8 f^8) for 1 + f in [sqrt(1/2), sqrt(2)): minimax in the relative error,
# degree 9, c0 and c1 fixed, the others rounded to float32 one by one and refitted. Largest relative error of
# the polynomial 3.2e-8; of the radius in float32, over all 2^32 words, 1.3e-7 (1.5 ulp).
_LOG = tuple(map(np.float32, (
    -2.0, 1.0, -0.6666781902313232, 0.5000267028808594, -0.39926204085350037,
    0.33155298233032227, -0.29828959703445435, 0.28533920645713806, -0.17401085793972015,
)))  # fmt: skip
# sin(pi y / 2) = y (c0 + c1 y^2 + c2 y^4 + c3 y^6) for y in [-1/2, 1/2]: degree 7, largest relative error 2.8e-8.
_SIN = tuple(map(np.float32, (1.5707963705062866, -0.645966649055481, 0.07971252501010895, -0.004685971420258284)))
# cos(pi y / 2) = c0 + c1 y^2 + ... + c4 y^8 for y in [-1/2, 1/2]: degree 8, c0 fixed, largest error 4.1e-10. Both
# in float32, over all 2^32 words: absolute error 8.5e-8, relative 1.3e-7 (1.7 ulp).
_COS = tuple(map(np.float32, (
    1.0, -1.2337005138397217, 0.25366851687431335, -0.0208552535623312, 0.0008935725782066584,
)))  # fmt: skip
_LOG_UNIT = np.float32(-1.3862943649291992 * 2.0**-23)  # -2 ln 2 in float32, for an exponent that is e 2^23
_SQRT_HALF_BITS = np.int32(0x3F3504F3)  # float32 just below sqrt(1/2)
_EXPONENT_BITS = np.int32(-0x00800000)  # sign and exponent of a float32
_SIGN_BIT = np.uint32(0x80000000)


class _Scratch:
    """Working memory for `blocks` Philox blocks; rows are words 0 and 2, or 1 and 3, of each block."""

    def __init__(self, blocks: int) -> None:
        pair = (2, blocks)
        self.blocks = blocks
        self.index = np.arange(blocks, dtype=np.uint64)  # (blocks,)
        self.even = np.empty(pair, np.uint64)
        self.odd = np.empty(pair, np.uint64)
        self.product = np.empty(pair, np.uint64)
        self.x, self.y = self.product.view(np.float32).reshape(2, *pair)  # once the words are drawn
        self.words = np.empty(pair, np.uint32)
        self.radius = np.empty(pair, np.float32)
        self.normals = np.empty((2, *pair), np.float32)  # [0]: cosines, words 0, 2; [1]: sines, words 1, 3
        self.total = np.empty((2, *pair), np.float32)
        self.flat = np.empty(4 * blocks, np.float32)


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
    planes = counters.reshape(-1, 4).T  # (4, counters)
    scratch = _Scratch(counters.size // 4)
    scratch.even[...], scratch.odd[...] = planes[0::2], planes[1::2]
    _philox(scratch, key)
    out = np.empty(counters.size, np.uint32)
    _interleave(scratch.even, scratch.odd, out)
    return out.reshape(counters.shape)


def words(key: bytes, *, domain: int, step: int, leaf: int, start: int, count: int) -> Uint32s:
    """Random words of one stream at elements start, ..., start + count - 1.

    Args:
        key: the 128-bit master key, 16 bytes.
        domain: what the words are for, `NOISE` or `SAMPLING`; below 2^8.
        step: training step, below 2^32.
        leaf: index of the parameter, below 2^24.
        start: first element, with start + count at most 2^64.
        count: number of elements.

    Returns:
        Random words, uint32, shape (count,).

    Raises:
        ValueError: a key that isn't 16 bytes, or an integer out of its range.
    """
    start, count = _range(start, count)
    streams = _streams(key, domain, [_bits("step", step, 32)], leaf)
    out = np.empty(count, np.uint32)
    for scratch, block, mine, theirs in _walk(start, count, BLOCK // 4):
        _fill(scratch, block, streams[0])
        flat = scratch.flat.view(np.uint32)
        _interleave(scratch.even, scratch.odd, flat)
        out[mine] = flat[theirs]
    return out


def normals(key: bytes, *, step: int, leaf: int, start: int, count: int) -> Float32s:
    """Standard normals of one noise stream at elements start, ..., start + count - 1.

    Words (w0, w1) of a block give (z0, z1) and (w2, w3) give (z2, z3): radius sqrt(-2 ln u) with
    u = w0 2^-32 + 2^-33 in float32, so never beyond 6.77, and angle 2 pi w1 / 2^32 (Box and Muller 1958).

    Args:
        key, step, leaf, start, count: as in `words`.

    Returns:
        Standard normals, float32, shape (count,).

    Raises:
        ValueError: a key that isn't 16 bytes, or an integer out of its range.

    >>> [float(z).hex() for z in normals(bytes(16), step=0, leaf=0, start=0, count=1)]
    ['-0x1.0c46d60000000p-2']
    """
    out = np.zeros(_range(start, count)[1], np.float32)
    add_weighted_normals(out, [1.0], key=key, step=step, leaf=leaf, start=start, scale=1.0)
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
    block: int = BLOCK,
) -> None:
    """Add scale * sum_j weights[j] * z(step - j, leaf, start + i) to out[i], in place.

    Order of operations, all float32: v_j = weights[j] * scale in float64, then rounded; acc = v_0 z_0;
    acc += v_1 z_1; ...; out += acc. Neither `threads` nor `block` changes a bit of the result. A native kernel
    may replace this function if it keeps that order.

    Args:
        out: float32, shape (elements,), contiguous; one leaf or a slice of it.
        weights: taps, newest first, shape (taps,) with taps at most step + 1.
        key: the 128-bit master key, 16 bytes.
        step: step of the newest noise, below 2^32.
        leaf: index of the parameter, below 2^24.
        start: element of the leaf that out[0] is, with start + elements at most 2^64.
        scale: common factor of all weights.
        threads: most threads to use; None for one a processor, at most 16.
        block: elements handled at a time, rounded down to a multiple of 4.

    Raises:
        ValueError: `out` isn't a writeable contiguous float32 vector, a tap reaches before step 0, weights
            too large for float32, a key that isn't 16 bytes, or an integer out of its range.
    """
    _vector(out)
    step = _bits("step", step, 32)
    factors = _factors(weights, scale)
    if len(factors) > step + 1:
        raise _checks.fail("len(weights)", len(factors), f"must be at most step + 1 = {step + 1}", "drop early taps")
    start, count = _range(start, len(out))
    streams = _streams(key, NOISE, [step - j for j in range(len(factors))], leaf)
    most = min(os.cpu_count() or 1, _MOST_THREADS) if threads is None else threads
    threads = _checks.integer("threads", most, minimum=1, fix="give the number of threads, or None for all")
    blocks = _checks.integer("block", block, minimum=4, fix="give a number of elements, such as 131072") // 4

    length = 4 * blocks * max(1, -(-count // (4 * blocks * threads)))  # whole blocks for each thread
    lefts = range(0, count, length)

    def span(left: int) -> None:
        _accumulate(out[left : left + length], factors, streams, start + left, blocks)

    # One span needs no pool; the list waits for all spans and passes on their errors.
    list(_pool(os.getpid()).map(span, lefts) if len(lefts) > 1 else map(span, lefts))


@lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    """The threads of process `pid`: a forked child has none of its parent's, so it makes its own."""
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix=f"bluegrad-noise-{pid}")


def _accumulate(out: Float32s, factors: Float32s, streams: Uint32s, start: int, blocks: int) -> None:
    """`add_weighted_normals` on one thread."""
    for scratch, block, mine, theirs in _walk(start, len(out), blocks):
        for tap, factor in enumerate(factors):
            _fill(scratch, block, streams[tap])
            _box_muller(scratch)
            np.multiply(scratch.normals, factor, out=scratch.normals if tap else scratch.total)
            if tap:
                np.add(scratch.total, scratch.normals, out=scratch.total)
        _interleave(scratch.total[0], scratch.total[1], scratch.flat)
        part = out[mine]
        np.add(part, scratch.flat[theirs], out=part)


def _walk(start: int, count: int, blocks: int) -> Iterator[tuple[_Scratch, int, slice, slice]]:
    """Cover elements start, ..., start + count - 1 by runs of at most `blocks` Philox blocks.

    Yields scratch, the run's first block, and the run's elements as a slice of the caller's array and of its own.
    """
    scratch, end = None, start + count
    stop = -(-end // 4)
    for block in range(start // 4, stop, blocks):
        size = min(blocks, stop - block)
        if scratch is None or scratch.blocks != size:
            scratch = _Scratch(size)
        left, right = max(start, 4 * block), min(end, 4 * (block + size))
        yield scratch, block, slice(left - start, right - start), slice(left - 4 * block, right - 4 * block)


def _streams(key: bytes, domain: int, steps: list[int], leaf: int) -> Uint32s:
    """Key schedule: words s0..s3 of one stream for each step, shape (steps, 4)."""
    if not isinstance(key, bytes) or len(key) != 16:
        # The key is secret: its value never enters a message.
        raise _checks.fail("key", type(key).__name__, "must be 16 bytes", "take them from the system's secure source")
    k0, k1, k2, k3 = (int.from_bytes(key[i : i + 4], "little") for i in range(0, 16, 4))
    place = _bits("leaf", leaf, 24) | _bits("domain", domain, 8) << 24
    return philox4x32(np.array([(step, place, k2, k3) for step in steps], np.uint32), (k0, k1))


def _fill(scratch: _Scratch, block: int, stream: Uint32s) -> None:
    """Fill scratch.even and .odd with the words of blocks block, block + 1, ... of one stream."""
    low, high = scratch.even[0], scratch.odd[0]
    np.add(scratch.index, np.uint64(block), out=low)
    np.right_shift(low, _WORD, out=high)
    np.bitwise_and(low, _LOW_WORD, out=low)
    scratch.even[1], scratch.odd[1] = stream[2:]
    _philox(scratch, stream[:2])


def _philox(scratch: _Scratch, key: Uint32s) -> None:
    """Encrypt the counters (even[0], odd[0], even[1], odd[1]) in place; each holds 32 bits in 64.

    A round is c0, c1, c2, c3 <- hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0).
    """
    even, odd, product = scratch.even, scratch.odd, scratch.product
    swapped = product[::-1]
    round_keys = (_WEYL + key.astype(np.uint64)[:, None]) & _LOW_WORD  # (rounds, 2, 1)
    for round_key in round_keys:
        np.multiply(even, _MULTIPLIERS, out=swapped)
        np.right_shift(product, _WORD, out=even)
        np.bitwise_xor(odd, round_key, out=odd)
        np.bitwise_xor(even, odd, out=even)
        np.bitwise_and(product, _LOW_WORD, out=odd)


def _box_muller(scratch: _Scratch) -> None:
    """Turn the words in scratch.even and .odd into scratch.normals."""
    np.copyto(scratch.words, scratch.even, casting="unsafe")
    _radius(scratch.words, scratch.radius, scratch.x, scratch.y)
    np.copyto(scratch.words, scratch.odd, casting="unsafe")
    cosine, sine = scratch.normals
    _direction(scratch.words, cosine, sine, scratch.x, scratch.y)
    np.multiply(scratch.normals, scratch.radius, out=scratch.normals)


def _radius(word: Uint32s, out: Float32s, x: Float32s, y: Float32s) -> None:
    """Write sqrt(-2 ln u), u = word 2^-32 + 2^-33, to `out`; x and y are scratch of the same shape."""
    np.copyto(x, word, casting="unsafe")
    np.multiply(x, np.float32(2.0**-32), out=x)
    np.add(x, np.float32(2.0**-33), out=x)  # u
    # u = 2^e m with m in [sqrt(1/2), sqrt(2)); all exact.
    bits, power = x.view(np.int32), y.view(np.int32)
    np.subtract(bits, _SQRT_HALF_BITS, out=power)
    np.bitwise_and(power, _EXPONENT_BITS, out=power)  # e 2^23
    np.subtract(bits, power, out=bits)  # m
    np.subtract(x, np.float32(1.0), out=x)  # f = m - 1
    _horner(_LOG, x, out)
    np.multiply(out, x, out=out)
    np.copyto(x, power, casting="unsafe")
    np.multiply(x, _LOG_UNIT, out=x)
    np.add(out, x, out=out)
    np.sqrt(out, out=out)


def _direction(word: Uint32s, cosine: Float32s, sine: Float32s, x: Float32s, y: Float32s) -> None:
    """Write cosine and sine of 2 pi word / 2^32; overwrites `word`; x and y are scratch of the same shape."""
    # word = 2^30 quadrant + offset, offset in [-2^29, 2^29): shifting the quadrant out leaves 4 offset, signed.
    turned = x.view(np.uint32)
    np.left_shift(word, np.uint32(2), out=turned)
    np.copyto(y, turned.view(np.int32), casting="unsafe")
    np.multiply(y, np.float32(2.0**-32), out=y)  # in quarter turns, [-1/2, 1/2]
    np.multiply(y, y, out=x)
    _horner(_COS, x, cosine)
    _horner(_SIN, x, sine)
    np.multiply(sine, y, out=sine)
    # Odd quadrants swap cosine and sine; quadrants 1, 2 negate the cosine and 2, 3 the sine.
    cosine_bits, sine_bits = cosine.view(np.uint32), sine.view(np.uint32)
    swap, signs = x.view(np.int32), y.view(np.uint32)
    np.add(word, np.uint32(1 << 29), out=word)  # quadrant in the two highest bits
    np.left_shift(word, np.uint32(1), out=x.view(np.uint32))
    np.right_shift(swap, np.int32(31), out=swap)  # all ones where odd
    np.bitwise_xor(cosine_bits, sine_bits, out=signs)
    np.bitwise_and(signs, x.view(np.uint32), out=signs)
    np.bitwise_xor(cosine_bits, signs, out=cosine_bits)
    np.bitwise_xor(sine_bits, signs, out=sine_bits)
    np.bitwise_and(word, _SIGN_BIT, out=signs)
    np.bitwise_xor(sine_bits, signs, out=sine_bits)
    np.add(word, np.uint32(1 << 30), out=word)
    np.bitwise_and(word, _SIGN_BIT, out=signs)
    np.bitwise_xor(cosine_bits, signs, out=cosine_bits)


def _horner(coefficients: tuple[np.float32, ...], x: Float32s, out: Float32s) -> None:
    """Write (...(c_n x + c_(n-1)) x + ...) x + c_0 to `out`."""
    lowest, *middle, highest = coefficients
    np.multiply(x, highest, out=out)
    for coefficient in reversed(middle):
        np.add(out, coefficient, out=out)
        np.multiply(out, x, out=out)
    np.add(out, lowest, out=out)


def _interleave(even: NDArray[Any], odd: NDArray[Any], flat: NDArray[Any]) -> None:
    """Lay out words 0, 2 and 1, 3 of each block, shape (2, blocks) each, element by element."""
    for row in range(2):
        np.copyto(flat[2 * row :: 4], even[row], casting="unsafe")
        np.copyto(flat[2 * row + 1 :: 4], odd[row], casting="unsafe")


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
