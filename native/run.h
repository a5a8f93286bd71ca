// Work on one leaf: split at counters' word boundaries, shared among threads that end with the call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <system_error>
#include <thread>
#include <vector>

#include "schedule.h"

namespace bluegrad {

constexpr std::size_t kWorthAThread = std::size_t{1} << 16;  // normals; starting a thread costs as much as drawing these

// Rounding to nearest, subnormals kept: what IEEE 754 says, whatever the caller's thread was set to.
class DefaultArithmetic {
public:
    DefaultArithmetic() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultArithmetic() { std::fesetenv(&saved_); }
    DefaultArithmetic(const DefaultArithmetic&) = delete;
    DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

private:
    std::fenv_t saved_;
};

// work(i, thread) for i < pieces, on the caller's thread and at most threads - 1 more; it mustn't throw. None outlives the
// call, so there is nothing for a fork to lose.
template <class Work>
void share(std::size_t pieces, std::size_t threads, Work work) {
    std::atomic<std::size_t> next{0};
    const auto loop = [&](std::size_t thread) {
        const DefaultArithmetic arithmetic;
        for (std::size_t piece = next++; piece < pieces; piece = next++) {
            work(piece, thread);
        }
    };
    std::vector<std::thread> others;
    try {
        for (std::size_t i = 1; i < std::min(threads, pieces); ++i) {
            others.emplace_back(loop, i);
        }
    } catch (const std::system_error&) {
        // the system has no thread to spare: those that run do the work
    }
    loop(0);
    for (std::thread& other : others) {
        other.join();
    }
}

// Call run(offset, size, high) for the parts of elements [element, element + count) that agree in the counter's
// second word.
template <class Run>
void split(std::uint64_t element, std::size_t count, Run run) {
    for (std::size_t done = 0; done < count;) {
        const std::uint64_t at = element + done;
        const auto high = static_cast<std::uint32_t>(at >> 34);
        const std::uint64_t room = (std::uint64_t{1} << 34) - (at & ((std::uint64_t{1} << 34) - 1));
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(room, count - done));
        run(done, size, high);
        done += size;
    }
}

// out[i] += sum_j factors[j] z_j(element + i), in pieces of at most `block` elements; 4 stream words a tap.
inline void accumulate(const Kernel& kernel, float* out, std::uint64_t element, std::size_t count,
                       const float* factors, const std::uint32_t* streams, std::size_t taps, std::size_t threads,
                       std::size_t block) {
    std::vector<Schedule> schedules(taps);
    const std::size_t useful = 1 + count * taps / kWorthAThread;
    split(element, count, [&](std::size_t offset, std::size_t size, std::uint32_t high) {
        for (std::size_t tap = 0; tap < taps; ++tap) {
            schedules[tap] = make_schedule(streams + 4 * tap, high, factors[tap]);
        }
        share((size + block - 1) / block, std::min(threads, useful), [&](std::size_t piece, std::size_t) {
            const std::size_t low = offset + piece * block, left = offset + size - low;
            kernel.accumulate(out + low, element + low, std::min(block, left), schedules.data(), taps);
        });
    });
}

// A step of a recurrence over rows of `stride` elements from number `first` on, of which `element` is where out starts.
inline void advance(const Kernel& kernel, float* out, std::uint64_t element, std::size_t count, float* rows,
                    std::uint64_t first, std::size_t stride, float scale, const std::uint32_t* stream, const Program& program,
                    std::size_t threads, std::size_t block) {
    const std::size_t vectors = 1 + program.size + program.result_count;  // read or written, roughly
    threads = std::min(threads, 1 + count * vectors / (4 * kWorthAThread));
    std::vector<float> scratch(threads * program.vectors() * kVector);
    std::vector<float*> registers(threads * program.registers);
    split(element, count, [&](std::size_t offset, std::size_t size, std::uint32_t high) {
        const Schedule schedule = make_schedule(stream, high, scale);
        share((size + block - 1) / block, threads, [&](std::size_t piece, std::size_t thread) {
            const std::size_t low = offset + piece * block, left = offset + size - low;
            kernel.advance(out + low, rows + (element - first) + low, stride, element + low, std::min(block, left), schedule,
                           program, scratch.data() + thread * program.vectors() * kVector,
                           registers.data() + thread * program.registers);
        });
    });
}

inline void words(const Kernel& kernel, std::uint32_t* out, std::uint64_t element, std::size_t count,
                  const std::uint32_t* stream) {
    split(element, count, [&](std::size_t offset, std::size_t size, std::uint32_t high) {
        kernel.words(out + offset, element + offset, size, make_schedule(stream, high, 0.0F));
    });
}

}  // namespace bluegrad
