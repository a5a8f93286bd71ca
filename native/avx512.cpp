// AVX-512 (the foundation suffices): 8 blocks a group.
#include <immintrin.h>

#include "loops.h"

namespace bluegrad {
namespace {

struct Avx512 {
    using Wide = __m512i;
    using Words = __m512i;
    using Floats = __m512;
    static constexpr int blocks = 8, groups = 4;

    static Wide wide(std::uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
    static Wide counters(std::uint64_t block) {
        return _mm512_add_epi64(wide(block), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    }
    static Wide multiply(Wide x, Wide y) { return _mm512_mul_epu32(x, y); }
    static Wide high(Wide x) { return _mm512_srli_epi64(x, 32); }
    static Wide exclusive(Wide x, Wide y) { return _mm512_xor_si512(x, y); }
    static Wide exclusive(Wide x, Wide y, Wide z) { return _mm512_ternarylogic_epi64(x, y, z, 0x96); }
    static Words pair(Wide x, Wide y) { return _mm512_mask_blend_epi32(0xAAAA, x, _mm512_slli_epi64(y, 32)); }

    static Words word(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
    static Words plus(Words x, Words y) { return _mm512_add_epi32(x, y); }
    static Words minus(Words x, Words y) { return _mm512_sub_epi32(x, y); }
    static Words both(Words x, Words y) { return _mm512_and_si512(x, y); }
    template <int kBits>
    static Words left(Words x) {
        return _mm512_slli_epi32(x, kBits);
    }

    static Floats real(float x) { return _mm512_set1_ps(x); }
    static Floats plus(Floats x, Floats y) { return _mm512_add_ps(x, y); }
    static Floats minus(Floats x, Floats y) { return _mm512_sub_ps(x, y); }
    static Floats times(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
    static Floats root(Floats x) { return _mm512_sqrt_ps(x); }
    static Words bits(Floats x) { return _mm512_castps_si512(x); }
    static Floats floats(Words x) { return _mm512_castsi512_ps(x); }
    static Floats rounded(Words x) { return _mm512_cvtepi32_ps(x); }
    // x where the highest bit of `where` is set, else y
    static Floats choose(Words where, Floats x, Floats y) {
        return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(where, _mm512_setzero_si512()), y, x);
    }
    // word 2^-32
    static Floats fraction(Words x) { return times(_mm512_cvtepu32_ps(x), real(0x1p-32F)); }

    static Words load(const std::uint32_t* from) { return _mm512_loadu_si512(from); }
    static Floats read(const float* from) { return _mm512_loadu_ps(from); }
    static void save(float* to, Floats x) { _mm512_storeu_ps(to, x); }

    // unpacking gives blocks 0, 2, 4, 6 and blocks 1, 3, 5, 7; of 64-bit halves of blocks, numbers 0-7 are of the
    // former and 8-15 of the latter
    static void order(Floats even, Floats odd, Floats& first, Floats& second) {
        const __m512d x = _mm512_castps_pd(_mm512_unpacklo_ps(even, odd));
        const __m512d y = _mm512_castps_pd(_mm512_unpackhi_ps(even, odd));
        const Wide low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
        first = _mm512_castpd_ps(_mm512_permutex2var_pd(x, low, y));
        second = _mm512_castpd_ps(_mm512_permutex2var_pd(x, high, y));
    }
    static void store(float* out, Floats even, Floats odd) {
        Floats first, second;
        order(even, odd, first, second);
        _mm512_storeu_ps(out, first);
        _mm512_storeu_ps(out + 16, second);
    }
    static void store(std::uint32_t* out, Words even, Words odd) {
        Floats first, second;
        order(floats(even), floats(odd), first, second);
        _mm512_storeu_si512(out, bits(first));
        _mm512_storeu_si512(out + 16, bits(second));
    }
    static void add(float* out, Floats even, Floats odd) {
        Floats first, second;
        order(even, odd, first, second);
        _mm512_storeu_ps(out, plus(_mm512_loadu_ps(out), first));
        _mm512_storeu_ps(out + 16, plus(_mm512_loadu_ps(out + 16), second));
    }
};

}  // namespace

extern const Kernel avx512_kernel = Loops<Avx512>::kernel("avx512");

}  // namespace bluegrad
