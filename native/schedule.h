// What one stream of words needs, worked out once for a run of blocks whose counters differ in the lowest word alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bluegrad {

constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;
constexpr int kLateRounds = kRounds - 2;

// The words of a counter after round 2, for the counter (b, high, s2, s3):
//   p = multiplier0 b,  q = multiplier1 (hi(p) ^ third)
//   hi(q) ^ first,  lo(q),  lo(p) ^ second,  fourth
// since in these rounds all but p and q is the same for every b. `factor` is the stream's weight in a sum.
struct Schedule {
    std::uint64_t first, second, third, fourth;
    std::uint64_t keys[kLateRounds][2];
    float factor;
};

// stream: the Philox key (two words) and the counter's upper two words.
inline Schedule make_schedule(const std::uint32_t* stream, std::uint32_t high, float factor) {
    std::uint32_t keys[kRounds][2];
    for (std::uint32_t round = 0; round < kRounds; ++round) {
        keys[round][0] = stream[0] + round * kWeyl0;
        keys[round][1] = stream[1] + round * kWeyl1;
    }
    const std::uint64_t one = kMultiplier1 * stream[2];
    const std::uint64_t zero = static_cast<std::uint32_t>(one >> 32) ^ high ^ keys[0][0];
    const std::uint64_t two = kMultiplier0 * zero;
    Schedule made{};
    made.first = static_cast<std::uint32_t>(one) ^ keys[1][0];
    made.second = static_cast<std::uint32_t>(two >> 32) ^ keys[1][1];
    made.third = stream[3] ^ keys[0][1];
    made.fourth = static_cast<std::uint32_t>(two);
    for (int round = 0; round < kLateRounds; ++round) {
        made.keys[round][0] = keys[round + 2][0];
        made.keys[round][1] = keys[round + 2][1];
    }
    made.factor = factor;
    return made;
}

// Philox4x32-10 of one counter.
inline void philox(const std::uint32_t* counter, const std::uint32_t* key, std::uint32_t* out) {
    std::uint64_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (std::uint32_t round = 0; round < kRounds; ++round) {
        const std::uint64_t p = kMultiplier0 * c0, q = kMultiplier1 * c2;
        c0 = static_cast<std::uint32_t>((q >> 32) ^ c1 ^ (key[0] + round * kWeyl0));
        c1 = static_cast<std::uint32_t>(q);
        c2 = static_cast<std::uint32_t>((p >> 32) ^ c3 ^ (key[1] + round * kWeyl1));
        c3 = static_cast<std::uint32_t>(p);
    }
    out[0] = static_cast<std::uint32_t>(c0);
    out[1] = static_cast<std::uint32_t>(c1);
    out[2] = static_cast<std::uint32_t>(c2);
    out[3] = static_cast<std::uint32_t>(c3);
}

// A step of a linear recurrence, as bluegrad/noise/_program.py describes it. Registers: 0 the new noise, then the rows
// that are read, then scratch.
enum Operation { kTimes, kPlus, kMinus };

struct Program {
    const std::int32_t* code;  // operation, register written, x, y
    const float* weights;
    std::size_t size;
    const std::int32_t* inputs;  // the rows that are read
    std::size_t input_count;
    const std::int32_t* results;  // row written, register
    std::size_t result_count;
    std::int32_t output;
    std::size_t registers;

    std::size_t vectors() const { return registers - input_count; }  // of scratch
};

constexpr std::size_t kVector = 1024;  // elements an instruction handles at a time: a few such vectors fit the cache

// One instruction set's loops. A run lies within blocks of one high counter word: element e is word e mod 4 of the
// block with lowest counter word e div 4.
struct Kernel {
    const char* name;
    // out[i] += sum_j taps[j].factor * z_j(element + i), float32, in the order of j
    void (*accumulate)(float* out, std::uint64_t element, std::size_t count, const Schedule* taps, std::size_t size);
    // out[i] = word of element + i
    void (*words)(std::uint32_t* out, std::uint64_t element, std::size_t count, const Schedule& stream);
    // out[i] += the program's output for noise z_0(element + i) and rows that start at element; scratch holds
    // vectors() of kVector elements, registers pointers to them
    void (*advance)(float* out, float* rows, std::size_t stride, std::uint64_t element, std::size_t count,
                    const Schedule& stream, const Program& program, float* scratch, float** registers);
    // radius of the first words, cosine and sine of the second: what the exhaustive test looks at
    void (*transform)(const std::uint32_t* first, const std::uint32_t* second, std::size_t count, float* radius,
                      float* cosine, float* sine);
    // two normals for each pair of words
    void (*cipher_normals)(const std::uint64_t* words, std::size_t pairs, float* out);
};

extern const Kernel portable_kernel;
#ifdef BLUEGRAD_X86
extern const Kernel avx2_kernel, avx512_kernel;
#endif

}  // namespace bluegrad
