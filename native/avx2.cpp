// AVX2: 4 blocks a group.
#include <immintrin.h>

#include "loops.h"

namespace bluegrad {
namespace {

struct Avx2 {
    using Wide = __m256i;
    using Words = __m256i;
    using Floats = __m256;
    static constexpr int blocks = 4, groups = 4;

    static Wide wide(std::uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
    static Wide counters(std::uint64_t block) { return _mm256_add_epi64(wide(block), _mm256_set_epi64x(3, 2, 1, 0)); }
    static Wide multiply(Wide x, Wide y) { return _mm256_mul_epu32(x, y); }
    static Wide high(Wide x) { return _mm256_srli_epi64(x, 32); }
    static Wide exclusive(Wide x, Wide y) { return _mm256_xor_si256(x, y); }
    static Wide exclusive(Wide x, Wide y, Wide z) { return exclusive(x, exclusive(y, z)); }
    static Words pair(Wide x, Wide y) { return _mm256_blend_epi32(x, _mm256_slli_epi64(y, 32), 0xAA); }

    static Words word(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
    static Words plus(Words x, Words y) { return _mm256_add_epi32(x, y); }
    static Words minus(Words x, Words y) { return _mm256_sub_epi32(x, y); }
    static Words both(Words x, Words y) { return _mm256_and_si256(x, y); }
    template <int kBits>
    static Words left(Words x) {
        return _mm256_slli_epi32(x, kBits);
    }

    static Floats real(float x) { return _mm256_set1_ps(x); }
    static Floats plus(Floats x, Floats y) { return _mm256_add_ps(x, y); }
    static Floats minus(Floats x, Floats y) { return _mm256_sub_ps(x, y); }
    static Floats times(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
    static Floats root(Floats x) { return _mm256_sqrt_ps(x); }
    static Words bits(Floats x) { return _mm256_castps_si256(x); }
    static Floats floats(Words x) { return _mm256_castsi256_ps(x); }
    static Floats rounded(Words x) { return _mm256_cvtepi32_ps(x); }
    // x where the highest bit of `where` is set, else y
    static Floats choose(Words where, Floats x, Floats y) { return _mm256_blendv_ps(y, x, floats(where)); }
    // word 2^-32: halves are put in the mantissas of 2^-9 and 2^7 and so are exact; their sum rounds once
    static Floats fraction(Words x) {
        const Words low = _mm256_blend_epi16(x, word(0x3B000000), 0xAA);
        const Words high = _mm256_blend_epi16(_mm256_srli_epi32(x, 16), word(0x43000000), 0xAA);
        return plus(minus(floats(high), real(0x1p7F + 0x1p-9F)), floats(low));
    }

    static Words load(const std::uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
    static Floats read(const float* from) { return _mm256_loadu_ps(from); }
    static void save(float* to, Floats x) { _mm256_storeu_ps(to, x); }

    // unpacking gives blocks 0, 2 and blocks 1, 3
    static void order(Floats even, Floats odd, Floats& first, Floats& second) {
        const Floats x = _mm256_unpacklo_ps(even, odd), y = _mm256_unpackhi_ps(even, odd);
        first = _mm256_permute2f128_ps(x, y, 0x20);
        second = _mm256_permute2f128_ps(x, y, 0x31);
    }
    static void store(float* out, Floats even, Floats odd) {
        Floats first, second;
        order(even, odd, first, second);
        _mm256_storeu_ps(out, first);
        _mm256_storeu_ps(out + 8, second);
    }
    static void store(std::uint32_t* out, Words even, Words odd) {
        Floats first, second;
        order(floats(even), floats(odd), first, second);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bits(first));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), bits(second));
    }
    static void add(float* out, Floats even, Floats odd) {
        Floats first, second;
        order(even, odd, first, second);
        _mm256_storeu_ps(out, plus(_mm256_loadu_ps(out), first));
        _mm256_storeu_ps(out + 8, plus(_mm256_loadu_ps(out + 8), second));
    }
};

}  // namespace

extern const Kernel avx2_kernel = Loops<Avx2>::kernel("avx2");

}  // namespace bluegrad
