// Box-Muller in float64 for words of a cipher; the order of operations is that of bluegrad/noise/_cipher.py, which
// gives the reasons. Plain loops, for the compiler to vectorise. In an unnamed namespace as loops.h is, and why.
#pragma once

#include <cmath>
#include <cstring>

#include "schedule.h"

namespace bluegrad {
namespace {

template <class To, class From>
inline To cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "a cast of bits");
    To out;
    std::memcpy(&out, &x, sizeof(out));
    return out;
}

template <int kSize>
inline double series(const double (&coefficients)[kSize], double x) {
    double value = x * coefficients[kSize - 1];
    for (int i = kSize - 2; i > 0; --i) {
        value = (value + coefficients[i]) * x;
    }
    return value + coefficients[0];
}

// x 2^0 for an integer below 2^52, by its place in a mantissa
inline double small(std::uint64_t x) { return cast<double>(x | 0x4330000000000000) - 0x1p52; }

inline double log(double u) {
    constexpr double atanh[] = {1.0,       1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                1.0 / 13,  1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};
    constexpr std::uint64_t exponent = 0xFFF0000000000000;
    const auto bits = cast<std::uint64_t>(u);
    const std::uint64_t power = (bits - 0x3FE6A09E667F3BCC) & exponent;
    const double m = cast<double>(bits - power), s = (m - 1.0) / (m + 1.0);
    const double e = small((power >> 52) ^ 0x800) - 0x800;  // u is above 2^-54: e is small
    return e * 0.6931471805599453 + series(atanh, s * s) * (s + s);
}

// x to the nearest float64: both halves are exact, their sum rounds once
inline double nearest(std::uint64_t x) {
    const double high = cast<double>(((x >> 32) ^ 0x80000000) | 0x4330000000000000) - (0x1p52 + 0x1p31);
    return high * 0x1p32 + small(x & 0xFFFFFFFF);
}

inline void cipher_normals(const std::uint64_t* words, std::size_t pairs, float* out) {
    constexpr double sin[] = {1.0,          -1.0 / 6,        1.0 / 120,        -1.0 / 5040,
                              1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000};
    constexpr double cos[] = {1.0,           -1.0 / 2,        1.0 / 24,           -1.0 / 720,          1.0 / 40320,
                              -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    for (std::size_t i = 0; i < pairs; ++i) {
        const std::uint64_t first = words[2 * i], second = words[2 * i + 1];
        const double radius = std::sqrt(log(small(first >> 12) * 0x1p-52 + 0x1p-53) * -2.0);
        const double angle = nearest(second << 2) * (0x1p-64 * 1.5707963267948966);
        const double square = angle * angle;
        const auto c = cast<std::uint64_t>(series(cos, square));
        const auto s = cast<std::uint64_t>(series(sin, square) * angle);
        const std::uint64_t quadrant = (second + (std::uint64_t{1} << 61)) >> 62;
        const std::uint64_t swap = (c ^ s) & (0 - (quadrant & 1));
        const auto cosine = cast<double>(c ^ swap ^ (((quadrant + 1) & 2) << 62));
        const auto sine = cast<double>(s ^ swap ^ ((quadrant & 2) << 62));
        out[2 * i] = static_cast<float>(radius * cosine);
        out[2 * i + 1] = static_cast<float>(radius * sine);
    }
}

}  // namespace
}  // namespace bluegrad
