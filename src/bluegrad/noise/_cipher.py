"""Noise from a cipher: AES-256 in counter mode, Box-Muller in float64, each normal rounded to float32 once.

Block b of the stream of (domain, step, leaf) is the encryption of the 128-bit number
domain 2^120 + leaf 2^96 + step 2^64 + b, most significant byte first, so no two streams share a block. Its two 64-bit
little-endian words (w0, w1) give elements 2 b and 2 b + 1: radius sqrt(-2 ln u), u = (floor(w0 / 2^12) + 1/2) 2^-52,
so never beyond 8.58, and angle 2 pi w1 / 2^64.

Logarithm, cosine and sine are series of +, -, *, / and sqrt, each rounded by itself as IEEE 754 says: the same bits
everywhere, within 1e-15 of the truth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bluegrad.noise._fallback import Float32s, Uint32s, spread

try:
    from cryptography.hazmat.primitives import ciphers
except ImportError:  # an optional package
    ciphers = None  # type: ignore[assignment, unused-ignore]

KEY_BYTES = 32
PAIRS = 1 << 13  # of words that a thread handles at a time, so that they stay in the processor's cache
_Float64s = NDArray[np.float64]

_LOG = [1.0 / (2 * k + 1) for k in range(12)]  # atanh(s) = s (1 + s^2 / 3 + ...), |s| < 0.1716
_SINE = [1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800, 1 / 6227020800, -1 / 1307674368000]
_COSINE = [
    1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600, -1 / 87178291200, 1 / 20922789888000,
]  # fmt: skip
_LN_2 = 0.6931471805599453
_SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCC)  # float64 just below sqrt(1/2)
_EXPONENT_BITS = np.int64(-0x0010000000000000)


def available() -> bool:
    """Whether the package that has the cipher is installed."""
    return ciphers is not None


def stream(key: bytes, domain: int, step: int, leaf: int, block: int) -> Callable[[int], NDArray[np.uint64]]:
    """A function of n that gives the next n <= `PAIRS` blocks of one stream, from `block` on.

    They are uint64, shape (n, 2), and stay until it is called again.
    """
    counter = (domain << 120 | leaf << 96 | step << 64 | block).to_bytes(16, "big")
    encryptor = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(counter)).encryptor()
    text, out = memoryview(bytes(16 * PAIRS)), np.empty(16 * PAIRS + 15, np.uint8)  # the cipher wants that much room

    def draw(count: int) -> NDArray[np.uint64]:
        encryptor.update_into(text[: 16 * count], out.data)
        return out[: 16 * count].view("<u8").reshape(count, 2)

    return draw


def words(out: Uint32s, key: bytes, domain: int, step: int, leaf: int, start: int) -> None:
    """Write 32-bit words of one stream to `out`: element e is word e mod 4 of block e div 4."""
    first, last = start // 4, -(-(start + len(out)) // 4)
    draw = stream(key, domain, step, leaf, first)
    parts = [draw(min(PAIRS, last - block)).reshape(-1).view("<u4").copy() for block in range(first, last, PAIRS)]
    if parts:
        out[:] = np.concatenate(parts)[start - 4 * first :][: len(out)]


def accumulate(
    out: Float32s, factors: Float32s, key: bytes, domain: int, steps: list[int], leaf: int, start: int, threads: int,
    transform: Callable[[NDArray[np.uint64]], Float32s],
) -> None:  # fmt: skip
    """Add sum_j factors[j] z(steps[j], start + i) to out[i]; the sums are float32, in the order of j."""

    length = 2 * PAIRS * max(1, -(-len(out) // (2 * PAIRS * threads)))  # whole runs of blocks for each thread

    def span(left: int) -> None:
        low, high = start + left, start + min(left + length, len(out))
        first, last = low // 2, -(-high // 2)
        draws = [stream(key, domain, step, leaf, first) for step in steps]
        for block in range(first, last, PAIRS):
            count = min(PAIRS, last - block)
            total = np.full(2 * count, -0.0, np.float32)  # -0 + x is x, whatever x is
            for factor, draw in zip(factors, draws):
                z = transform(draw(count))
                z *= factor
                total += z
            here = slice(max(low, 2 * block), min(high, 2 * (block + count)))
            out[here.start - start : here.stop - start] += total[here.start - 2 * block : here.stop - 2 * block]

    spread(span, range(0, len(out), length), threads)


def box_muller(blocks: NDArray[np.uint64]) -> _Float64s:
    """Standard normals of blocks of two words, float64, shape (2 blocks,)."""
    radius = np.sqrt(_log((blocks[:, 0] >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53) * -2.0)
    cosine, sine = _direction(blocks[:, 1])
    out = np.empty((len(blocks), 2))
    np.multiply(radius, cosine, out=out[:, 0])
    np.multiply(radius, sine, out=out[:, 1])
    return out.reshape(-1)


def _log(u: _Float64s) -> _Float64s:
    """ln u = e ln 2 + 2 atanh((m - 1) / (m + 1)) for u = 2^e m, m in [sqrt(1/2), sqrt(2))."""
    bits = u.view(np.int64)
    power = (bits - _SQRT_HALF_BITS) & _EXPONENT_BITS  # e 2^52
    m = (bits - power).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    return power.astype(np.float64) * (2.0**-52 * _LN_2) + _horner(_LOG, s * s) * (s + s)


def _direction(w: NDArray[np.uint64]) -> tuple[_Float64s, _Float64s]:
    """Cosine and sine of 2 pi w / 2^64."""
    # w = 2^62 quadrant + offset, offset in [-2^61, 2^61): shifting the quadrant out leaves 4 offset, signed
    angle = (w << np.uint64(2)).view(np.int64).astype(np.float64) * (2.0**-64 * (np.pi / 2))
    square = angle * angle
    cosine, sine = _horner(_COSINE, square), _horner(_SINE, square) * angle
    quadrant = (w + np.uint64(1 << 61)) >> np.uint64(62)
    odd = (quadrant & np.uint64(1)).astype(bool)
    cosine, sine = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    # quadrants 1, 2 negate the cosine and 2, 3 the sine
    for value, turned in ((cosine, quadrant + np.uint64(1)), (sine, quadrant)):
        bits = value.view(np.uint64)
        np.bitwise_xor(bits, (turned & np.uint64(2)) << np.uint64(62), out=bits)
    return cosine, sine


def _horner(coefficients: list[float], x: _Float64s) -> _Float64s:
    out = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        out += coefficient
        out *= x
    out += coefficients[0]
    return out
