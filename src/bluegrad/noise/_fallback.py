"""The noise kernel's arithmetic in NumPy: what runs where nothing was compiled, and what compiled code must equal.

Every operation is rounded by itself, in the order below: integer operations, conversions, and float32 +, -, *, sqrt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bluegrad.noise._program import Program

Float32s = NDArray[np.float32]
Uint32s = NDArray[np.uint32]

# Elements that one thread handles at a time. Scratch is 120 bytes a Philox block, 4 MB in all: below this size
# threads wait for each other, since the interpreter's lock is taken between any two array operations.
BLOCK = 1 << 17
_MOST_THREADS = 16
_CACHED = 1 << 15  # elements summed over many rows at a time, so that they stay in the processor's cache

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


def philox(counters: Uint32s, key: Uint32s) -> Uint32s:
    """Philox4x32-10 of every counter, shape (counters, 4), under one key of two words."""
    planes = counters.T
    scratch = _Scratch(len(counters))
    scratch.even[...], scratch.odd[...] = planes[0::2], planes[1::2]
    _philox(scratch, key)
    out = np.empty(counters.size, np.uint32)
    _interleave(scratch.even, scratch.odd, out)
    return out.reshape(counters.shape)


def words(out: Uint32s, stream: Uint32s, start: int) -> None:
    """Write the stream's words from element `start` on to `out`."""
    for scratch, block, mine, theirs in _walk(start, len(out), BLOCK // 4):
        _fill(scratch, block, stream)
        flat = scratch.flat.view(np.uint32)
        _interleave(scratch.even, scratch.odd, flat)
        out[mine] = flat[theirs]


def accumulate(out: Float32s, factors: Float32s, streams: Uint32s, start: int, threads: int, block: int) -> None:
    """Add sum_j factors[j] z_j(start + i) to out[i], `block` elements at a time.

    Order of operations, all float32: acc = factors[0] z_0; acc += factors[1] z_1; ...; out += acc.
    """
    blocks = block // 4
    length = 4 * blocks * max(1, -(-len(out) // (4 * blocks * threads)))  # whole blocks for each thread
    lefts = range(0, len(out), length)

    def span(left: int) -> None:
        _accumulate(out[left : left + length], factors, streams, start + left, blocks)

    spread(span, lefts, threads)


def spread(span: Callable[[int], None], lefts: range, threads: int) -> None:
    """span(left) for all lefts, on as many threads."""
    # One span needs no pool; the list waits for all spans and passes on their errors.
    several = threads > 1 and len(lefts) > 1
    list(_pool(os.getpid()).map(span, lefts) if several else map(span, lefts))


def advance(
    out: Float32s, rows: Float32s, program: Program, inputs: list[int], results: list[tuple[int, int]], start: int,
    first: int, draw: Callable[[Float32s, int], None],
) -> None:  # fmt: skip
    """Add the program's output to `out` and write its results, (row, register) each, to rows of elements `first` on.

    `draw(z, element)` adds the new noise of elements from `element` on to z.
    """
    z = np.empty(min(len(out), BLOCK), np.float32)
    for left in range(0, len(out), BLOCK):
        drawn = z[: len(out) - left]
        drawn[:] = 0.0
        draw(drawn, start + left)
        for low in range(0, len(drawn), _CACHED):
            part = out[left + low : left + min(low + _CACHED, len(drawn))]
            column = start - first + left + low
            here = slice(column, column + len(part))
            at = program.run(drawn[low : low + _CACHED], [rows[row, here] for row in inputs])
            part += at[program.output]
            for row, register in results:
                rows[row, here] = at[register]


def transform(first: Uint32s, second: Uint32s) -> tuple[Float32s, Float32s, Float32s]:
    """Radius of the first words, cosine and sine of the second."""
    radius, cosine, sine, x, y = (np.empty(first.shape, np.float32) for _ in range(5))
    _radius(first, radius, x, y)
    _direction(second.copy(), cosine, sine, x, y)
    return radius, cosine, sine


@lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    """The threads of process `pid`: a forked child has none of its parent's, so it makes its own."""
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix=f"bluegrad-noise-{pid}")


def _accumulate(out: Float32s, factors: Float32s, streams: Uint32s, start: int, blocks: int) -> None:
    """`accumulate` on one thread."""
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
