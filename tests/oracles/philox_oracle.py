"""Slow scalar twins of the noise kernel: Philox4x32-10 in Python integers, Box-Muller in 30 digits."""

from __future__ import annotations

import struct

import mpmath

WORD = 0xFFFFFFFF


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """One block of Philox4x32-10, written from figure 3 of Salmon et al. 2011: L, R pairs and a swap."""
    left0, right0, left1, right1 = counter[1], counter[0], counter[3], counter[2]
    key0, key1 = key
    for _ in range(10):
        product0, product1 = right0 * 0xD2511F53, right1 * 0xCD9E8D57
        right0, left0, right1, left1 = (
            (product1 >> 32) ^ left0 ^ key0, product1 & WORD, (product0 >> 32) ^ left1 ^ key1, product0 & WORD,
        )  # fmt: skip
        key0, key1 = (key0 + 0x9E3779B9) & WORD, (key1 + 0xBB67AE85) & WORD
    return right0, left0, right1, left1


def block(key: bytes, domain: int, step: int, leaf: int, number: int) -> tuple[int, ...]:
    """Block `number` of the stream (domain, step, leaf) of the master key."""
    k = struct.unpack("<4I", key)
    s = philox((step, (domain << 24) + leaf, k[2], k[3]), k[:2])
    return philox((number & WORD, number >> 32, s[2], s[3]), s[:2])


def word(key: bytes, domain: int, step: int, leaf: int, element: int) -> int:
    return block(key, domain, step, leaf, element // 4)[element % 4]


def single(x: float) -> float:
    """Round a double to the nearest float32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def uniform(w: int) -> float:
    """float32(w) 2^-32 + 2^-33 in float32; the sum is exact in double before it is rounded."""
    return single(single(float(w)) * 2.0**-32 + 2.0**-33)


def box_muller(w0: int, w1: int) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """Radius and the two normals of a pair of words, exact but for the definition of `uniform`."""
    with mpmath.workdps(30):
        radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(uniform(w0))))
        angle = mpmath.mpf(w1) / 2**31  # in half turns
        return radius, radius * mpmath.cospi(angle), radius * mpmath.sinpi(angle)


def normal(key: bytes, step: int, leaf: int, element: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The normal of one element and the radius it came with."""
    words = block(key, 0, step, leaf, element // 4)
    pair = element % 4 // 2 * 2
    radius, cosine, sine = box_muller(words[pair], words[pair + 1])
    return (sine if element % 2 else cosine), radius
