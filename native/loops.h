// Philox4x32-10, Box-Muller and the weighted sum, written once over an instruction set's lanes.
//
// The order of operations is that of bluegrad/noise/_fallback.py, which gives the reasons for the constants; both
// must give the same bits, so each operation here is rounded by itself: compile without contraction.
//
// Lanes holds `blocks` Philox blocks. Wide: one 64-bit number a block, of which the multiplication sees the low
// half, so that what is left in the upper half by earlier rounds does no harm. Words and Floats: 2 blocks 32-bit
// lanes, words (0, 2) or (1, 3) of each block.
//
// Everything lies in an unnamed namespace: each source file compiles its own copy with its own flags, and a linker
// must never put one in another's place.
#pragma once

#include "double.h"
#include "schedule.h"

namespace bluegrad {
namespace {

template <class Lanes>
struct Loops {
    using Wide = typename Lanes::Wide;
    using Words = typename Lanes::Words;
    using Floats = typename Lanes::Floats;
    static constexpr int kGroups = Lanes::groups;  // groups in flight, to hide the latency of the multiplications
    static constexpr std::size_t kElements = 4 * Lanes::blocks;
    static constexpr std::size_t kStep = kGroups * kElements;

    static inline void draw(std::uint64_t block, const Schedule& stream, Words (&even)[kGroups],
                            Words (&odd)[kGroups]) {
        const Wide m0 = Lanes::wide(kMultiplier0), m1 = Lanes::wide(kMultiplier1);
        Wide c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
        for (int g = 0; g < kGroups; ++g) {
            const Wide p = Lanes::multiply(Lanes::counters(block + g * Lanes::blocks), m0);
            const Wide q = Lanes::multiply(Lanes::exclusive(Lanes::high(p), Lanes::wide(stream.third)), m1);
            c0[g] = Lanes::exclusive(Lanes::high(q), Lanes::wide(stream.first));
            c1[g] = q;
            c2[g] = Lanes::exclusive(p, Lanes::wide(stream.second));
            c3[g] = Lanes::wide(stream.fourth);
        }
        for (int round = 0; round < kLateRounds; ++round) {
            const Wide k0 = Lanes::wide(stream.keys[round][0]), k1 = Lanes::wide(stream.keys[round][1]);
            for (int g = 0; g < kGroups; ++g) {
                const Wide p = Lanes::multiply(c0[g], m0), q = Lanes::multiply(c2[g], m1);
                c0[g] = Lanes::exclusive(Lanes::high(q), c1[g], k0);
                c1[g] = q;
                c2[g] = Lanes::exclusive(Lanes::high(p), c3[g], k1);
                c3[g] = p;
            }
        }
        for (int g = 0; g < kGroups; ++g) {
            even[g] = Lanes::pair(c0[g], c2[g]);
            odd[g] = Lanes::pair(c1[g], c3[g]);
        }
    }

    // Groups advance side by side, for each chain of operations waits for its own results most of the time.
    template <int kSize>
    static inline void horner(const float (&coefficients)[kSize], const Floats (&x)[kGroups], Floats (&value)[kGroups]) {
        for (int g = 0; g < kGroups; ++g) {
            value[g] = Lanes::times(x[g], Lanes::real(coefficients[kSize - 1]));
        }
        for (int i = kSize - 2; i > 0; --i) {
            for (int g = 0; g < kGroups; ++g) {
                value[g] = Lanes::times(Lanes::plus(value[g], Lanes::real(coefficients[i])), x[g]);
            }
        }
        for (int g = 0; g < kGroups; ++g) {
            value[g] = Lanes::plus(value[g], Lanes::real(coefficients[0]));
        }
    }

    // sqrt(-2 ln u), u = word 2^-32 + 2^-33
    static inline void radius(const Words (&word)[kGroups], Floats (&value)[kGroups]) {
        constexpr float log[] = {-2.0F,
                                 1.0F,
                                 -0.6666781902313232F,
                                 0.5000267028808594F,
                                 -0.39926204085350037F,
                                 0.33155298233032227F,
                                 -0.29828959703445435F,
                                 0.28533920645713806F,
                                 -0.17401085793972015F};
        Words power[kGroups];
        Floats f[kGroups];
        for (int g = 0; g < kGroups; ++g) {
            const Floats u = Lanes::plus(Lanes::fraction(word[g]), Lanes::real(0x1p-33F));
            const Words bits = Lanes::bits(u);
            power[g] = Lanes::both(Lanes::minus(bits, Lanes::word(0x3F3504F3)), Lanes::word(0xFF800000));
            f[g] = Lanes::minus(Lanes::floats(Lanes::minus(bits, power[g])), Lanes::real(1.0F));
        }
        horner(log, f, value);
        for (int g = 0; g < kGroups; ++g) {
            const Floats exponent = Lanes::times(Lanes::rounded(power[g]), Lanes::real(-1.3862943649291992F * 0x1p-23F));
            value[g] = Lanes::root(Lanes::plus(Lanes::times(value[g], f[g]), exponent));
        }
    }

    // cosine and sine of 2 pi word / 2^32
    static inline void direction(const Words (&word)[kGroups], Floats (&cosine)[kGroups], Floats (&sine)[kGroups]) {
        constexpr float sin[] = {1.5707963705062866F, -0.645966649055481F, 0.07971252501010895F,
                                 -0.004685971420258284F};
        constexpr float cos[] = {1.0F, -1.2337005138397217F, 0.25366851687431335F, -0.0208552535623312F,
                                 0.0008935725782066584F};
        Floats x[kGroups], y[kGroups], c[kGroups], s[kGroups];
        for (int g = 0; g < kGroups; ++g) {
            y[g] = Lanes::times(Lanes::rounded(Lanes::template left<2>(word[g])), Lanes::real(0x1p-32F));
            x[g] = Lanes::times(y[g], y[g]);
        }
        horner(cos, x, c);
        horner(sin, x, s);
        const Words sign = Lanes::word(1U << 31);
        for (int g = 0; g < kGroups; ++g) {
            s[g] = Lanes::times(s[g], y[g]);
            // odd quadrants swap cosine and sine; quadrants 1, 2 negate the cosine and 2, 3 the sine
            const Words turned = Lanes::plus(word[g], Lanes::word(1U << 29)), swap = Lanes::template left<1>(turned);
            const Words negative = Lanes::both(Lanes::plus(turned, Lanes::word(1U << 30)), sign);
            cosine[g] = Lanes::floats(Lanes::exclusive(Lanes::bits(Lanes::choose(swap, s[g], c[g])), negative));
            sine[g] =
                Lanes::floats(Lanes::exclusive(Lanes::bits(Lanes::choose(swap, c[g], s[g])), Lanes::both(turned, sign)));
        }
    }

    // the weighted sums of kGroups groups of blocks: cosines (words 0, 2) and sines (words 1, 3)
    static inline void sum(std::uint64_t block, const Schedule* taps, std::size_t size, Floats (&even)[kGroups],
                           Floats (&odd)[kGroups]) {
        for (int g = 0; g < kGroups; ++g) {
            even[g] = odd[g] = Lanes::real(-0.0F);  // -0 + x is x, whatever x is
        }
        for (std::size_t tap = 0; tap < size; ++tap) {
            Words radii[kGroups], angles[kGroups];
            Floats r[kGroups], cosine[kGroups], sine[kGroups];
            draw(block, taps[tap], radii, angles);
            radius(radii, r);
            direction(angles, cosine, sine);
            const Floats factor = Lanes::real(taps[tap].factor);
            for (int g = 0; g < kGroups; ++g) {
                even[g] = Lanes::plus(even[g], Lanes::times(Lanes::times(cosine[g], r[g]), factor));
                odd[g] = Lanes::plus(odd[g], Lanes::times(Lanes::times(sine[g], r[g]), factor));
            }
        }
    }

    // Cover a run by steps of kStep elements: `whole` where one lies within it, else `part` with the elements
    // [low, high) of the step that do.
    template <class Whole, class Part>
    static inline void walk(std::uint64_t element, std::size_t count, Whole whole, Part part) {
        std::size_t done = 0;
        while (done < count) {
            const std::uint64_t block = (element + done) / 4;
            const std::size_t low = (element + done) % 4, left = count - done;
            if (low == 0 && left >= kStep) {
                whole(block, done);
                done += kStep;
            } else {
                const std::size_t high = low + left < kStep ? low + left : kStep;
                part(block, done, low, high);
                done += high - low;
            }
        }
    }

    static void accumulate(float* out, std::uint64_t element, std::size_t count, const Schedule* taps,
                           std::size_t size) {
        Floats even[kGroups], odd[kGroups];
        walk(
            element, count,
            [&](std::uint64_t block, std::size_t done) {
                sum(block, taps, size, even, odd);
                for (int g = 0; g < kGroups; ++g) {
                    Lanes::add(out + done + g * kElements, even[g], odd[g]);
                }
            },
            [&](std::uint64_t block, std::size_t done, std::size_t low, std::size_t high) {
                float all[kStep];
                sum(block, taps, size, even, odd);
                for (int g = 0; g < kGroups; ++g) {
                    Lanes::store(all + g * kElements, even[g], odd[g]);
                }
                for (std::size_t i = low; i < high; ++i) {
                    out[done + i - low] += all[i];
                }
            });
    }

    static void words(std::uint32_t* out, std::uint64_t element, std::size_t count, const Schedule& stream) {
        Words even[kGroups], odd[kGroups];
        const auto part = [&](std::uint64_t block, std::size_t done, std::size_t low, std::size_t high) {
            std::uint32_t all[kStep];
            draw(block, stream, even, odd);
            for (int g = 0; g < kGroups; ++g) {
                Lanes::store(all + g * kElements, even[g], odd[g]);
            }
            for (std::size_t i = low; i < high; ++i) {
                out[done + i - low] = all[i];
            }
        };
        walk(element, count, [&](std::uint64_t block, std::size_t done) { part(block, done, 0, kStep); }, part);
    }

    static void advance(float* out, float* rows, std::size_t stride, std::uint64_t element, std::size_t count,
                        const Schedule& stream, const Program& program, float* scratch, float** registers) {
        for (std::size_t done = 0; done < count; done += kVector) {
            const std::size_t size = count - done < kVector ? count - done : kVector;
            registers[0] = scratch;
            for (std::size_t i = 0; i < program.input_count; ++i) {
                registers[1 + i] = rows + static_cast<std::size_t>(program.inputs[i]) * stride + done;
            }
            for (std::size_t i = 1; i < program.vectors(); ++i) {
                registers[program.input_count + i] = scratch + i * kVector;
            }
            for (std::size_t i = 0; i < size; ++i) {
                scratch[i] = 0.0F;
            }
            accumulate(scratch, element + done, size, &stream, 1);
            for (std::size_t i = 0; i < program.size; ++i) {
                const std::int32_t* code = program.code + 4 * i;
                run(code[0], registers[code[1]], registers[code[2]], registers[code[3]], program.weights[i], size);
            }
            const float* value = registers[program.output];
            for (std::size_t i = 0; i < size; ++i) {
                out[done + i] += value[i];
            }
            for (std::size_t i = 0; i < program.result_count; ++i) {
                const float* from = registers[program.results[2 * i + 1]];
                float* to = rows + static_cast<std::size_t>(program.results[2 * i]) * stride + done;
                for (std::size_t j = 0; j < size; ++j) {
                    to[j] = from[j];
                }
            }
        }
    }

    // `to` may be x or y
    static inline void run(int operation, float* to, const float* x, const float* y, float weight, std::size_t size) {
        const Floats w = Lanes::real(weight);
        constexpr std::size_t kLanes = 2 * Lanes::blocks;
        std::size_t i = 0;
        for (; i + kLanes <= size; i += kLanes) {
            const Floats product = Lanes::times(Lanes::read(y + i), w);
            Lanes::save(to + i, operation == kTimes  ? product
                                : operation == kPlus ? Lanes::plus(Lanes::read(x + i), product)
                                                     : Lanes::minus(Lanes::read(x + i), product));
        }
        for (; i < size; ++i) {
            const float product = y[i] * weight;
            to[i] = operation == kTimes ? product : operation == kPlus ? x[i] + product : x[i] - product;
        }
    }

    static void transform(const std::uint32_t* first, const std::uint32_t* second, std::size_t count, float* radii,
                          float* cosines, float* sines) {
        constexpr std::size_t kLanes = 2 * Lanes::blocks, kSize = kGroups * kLanes;
        for (std::size_t done = 0; done < count; done += kSize) {
            const std::size_t size = count - done < kSize ? count - done : kSize;
            std::uint32_t words[2][kSize] = {};
            float values[3][kSize];
            for (std::size_t i = 0; i < size; ++i) {
                words[0][i] = first[done + i];
                words[1][i] = second[done + i];
            }
            Words even[kGroups], odd[kGroups];
            Floats r[kGroups], cosine[kGroups], sine[kGroups];
            for (int g = 0; g < kGroups; ++g) {
                even[g] = Lanes::load(words[0] + g * kLanes);
                odd[g] = Lanes::load(words[1] + g * kLanes);
            }
            radius(even, r);
            direction(odd, cosine, sine);
            for (int g = 0; g < kGroups; ++g) {
                Lanes::save(values[0] + g * kLanes, r[g]);
                Lanes::save(values[1] + g * kLanes, cosine[g]);
                Lanes::save(values[2] + g * kLanes, sine[g]);
            }
            for (std::size_t i = 0; i < size; ++i) {
                radii[done + i] = values[0][i];
                cosines[done + i] = values[1][i];
                sines[done + i] = values[2][i];
            }
        }
    }

    static constexpr Kernel kernel(const char* name) { return {name, accumulate, words, advance, transform, cipher_normals}; }
};

}  // namespace
}  // namespace bluegrad
