// Plain C++ over short arrays, which compilers turn into whatever vectors the target has (SSE2, NEON).
#include <cmath>
#include <cstring>

#include "loops.h"

namespace bluegrad {
namespace {

template <class T, int kSize>
struct Array {
    T at[kSize];
};

struct Portable {
    static constexpr int blocks = 4, groups = 1;
    using Wide = Array<std::uint64_t, blocks>;
    using Words = Array<std::uint32_t, 2 * blocks>;
    using Floats = Array<float, 2 * blocks>;

    template <class Out, class Function>
    static Out each(Function function) {
        Out out;
        for (std::size_t i = 0; i < sizeof(out.at) / sizeof(out.at[0]); ++i) {
            out.at[i] = function(i);
        }
        return out;
    }

    static Wide wide(std::uint64_t x) {
        return each<Wide>([&](std::size_t) { return x; });
    }
    static Wide counters(std::uint64_t block) {
        return each<Wide>([&](std::size_t i) { return block + i; });
    }
    static Wide multiply(Wide x, Wide y) {
        return each<Wide>([&](std::size_t i) { return (x.at[i] & 0xFFFFFFFF) * (y.at[i] & 0xFFFFFFFF); });
    }
    static Wide high(Wide x) {
        return each<Wide>([&](std::size_t i) { return x.at[i] >> 32; });
    }
    static Wide exclusive(Wide x, Wide y) {
        return each<Wide>([&](std::size_t i) { return x.at[i] ^ y.at[i]; });
    }
    static Wide exclusive(Wide x, Wide y, Wide z) { return exclusive(x, exclusive(y, z)); }
    static Words pair(Wide x, Wide y) {
        return each<Words>([&](std::size_t i) { return static_cast<std::uint32_t>((i % 2 ? y : x).at[i / 2]); });
    }

    static Words word(std::uint32_t x) {
        return each<Words>([&](std::size_t) { return x; });
    }
    static Words plus(Words x, Words y) {
        return each<Words>([&](std::size_t i) { return x.at[i] + y.at[i]; });
    }
    static Words minus(Words x, Words y) {
        return each<Words>([&](std::size_t i) { return x.at[i] - y.at[i]; });
    }
    static Words both(Words x, Words y) {
        return each<Words>([&](std::size_t i) { return x.at[i] & y.at[i]; });
    }
    static Words exclusive(Words x, Words y) {
        return each<Words>([&](std::size_t i) { return x.at[i] ^ y.at[i]; });
    }
    template <int kBits>
    static Words left(Words x) {
        return each<Words>([&](std::size_t i) { return x.at[i] << kBits; });
    }

    static Floats real(float x) {
        return each<Floats>([&](std::size_t) { return x; });
    }
    static Floats plus(Floats x, Floats y) {
        return each<Floats>([&](std::size_t i) { return x.at[i] + y.at[i]; });
    }
    static Floats minus(Floats x, Floats y) {
        return each<Floats>([&](std::size_t i) { return x.at[i] - y.at[i]; });
    }
    static Floats times(Floats x, Floats y) {
        return each<Floats>([&](std::size_t i) { return x.at[i] * y.at[i]; });
    }
    static Floats root(Floats x) {
        return each<Floats>([&](std::size_t i) { return std::sqrt(x.at[i]); });
    }
    static Words bits(Floats x) {
        Words out;
        std::memcpy(&out, &x, sizeof(out));
        return out;
    }
    static Floats floats(Words x) {
        Floats out;
        std::memcpy(&out, &x, sizeof(out));
        return out;
    }
    static Floats rounded(Words x) {
        return each<Floats>([&](std::size_t i) { return static_cast<float>(static_cast<std::int32_t>(x.at[i])); });
    }
    // x where the highest bit of `where` is set, else y
    static Floats choose(Words where, Floats x, Floats y) {
        const Words from = bits(x), other = bits(y);
        return floats(each<Words>([&](std::size_t i) {
            const std::uint32_t mask = 0U - (where.at[i] >> 31);
            return (from.at[i] & mask) | (other.at[i] & ~mask);
        }));
    }
    // word 2^-32: both halves are exact, their sum rounds once
    static Floats fraction(Words x) {
        return each<Floats>([&](std::size_t i) {
            const auto high = static_cast<float>(static_cast<std::int32_t>(x.at[i] >> 16));
            const auto low = static_cast<float>(static_cast<std::int32_t>(x.at[i] & 0xFFFF));
            return high * 0x1p-16F + low * 0x1p-32F;
        });
    }

    static Words load(const std::uint32_t* from) {
        Words out;
        std::memcpy(&out, from, sizeof(out));
        return out;
    }
    static Floats read(const float* from) {
        Floats out;
        std::memcpy(&out, from, sizeof(out));
        return out;
    }
    static void save(float* to, Floats x) { std::memcpy(to, &x, sizeof(x)); }
    template <class T, class Lanes>
    static void store(T* out, Lanes even, Lanes odd) {
        for (int i = 0; i < 2 * blocks; ++i) {
            out[2 * i] = even.at[i];
            out[2 * i + 1] = odd.at[i];
        }
    }
    static void add(float* out, Floats even, Floats odd) {
        for (int i = 0; i < 2 * blocks; ++i) {
            out[2 * i] += even.at[i];
            out[2 * i + 1] += odd.at[i];
        }
    }
};

}  // namespace

extern const Kernel portable_kernel = Loops<Portable>::kernel("portable");

}  // namespace bluegrad
