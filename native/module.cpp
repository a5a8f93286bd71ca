// The module bluegrad.noise._native. Arguments come checked from bluegrad/noise/_backend.py, its one caller.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "run.h"

namespace nb = nanobind;

namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Blocks = nb::ndarray<T, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;

// What this processor and system can run, fastest first.
std::vector<const bluegrad::Kernel*> available() {
    std::vector<const bluegrad::Kernel*> found;
#ifdef BLUEGRAD_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) {
        found.push_back(&bluegrad::avx512_kernel);
    }
    if (__builtin_cpu_supports("avx2")) {
        found.push_back(&bluegrad::avx2_kernel);
    }
#endif
    found.push_back(&bluegrad::portable_kernel);
    return found;
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const bluegrad::Kernel* kernel : available()) {
        names.emplace_back(kernel->name);
    }
    return names;
}

const bluegrad::Kernel& kernel_of(const std::string& name) {
    for (const bluegrad::Kernel* kernel : available()) {
        if (name == kernel->name) {
            return *kernel;
        }
    }
    throw std::invalid_argument("instruction_set=" + name + ": isn't one of instruction_sets()");
}

void philox(Blocks<const std::uint32_t> counters, Vector<const std::uint32_t> key, Blocks<std::uint32_t> out) {
    const nb::gil_scoped_release release;
    for (std::size_t i = 0; i < counters.size(); i += 4) {
        bluegrad::philox(counters.data() + i, key.data(), out.data() + i);
    }
}

void accumulate(Vector<float> out, Vector<const float> factors, Blocks<const std::uint32_t> streams,
                std::uint64_t start, std::size_t threads, std::size_t block, const std::string& instruction_set) {
    const bluegrad::Kernel& kernel = kernel_of(instruction_set);
    const nb::gil_scoped_release release;
    bluegrad::accumulate(kernel, out.data(), start, out.size(), factors.data(), streams.data(), factors.size(),
                         threads, block);
}

void advance(Vector<float> out, std::uint64_t start, nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> rows,
             std::uint64_t first, float scale, Vector<const std::uint32_t> stream, Blocks<const std::int32_t> code,
             Vector<const float> weights, Vector<const std::int32_t> inputs, Vector<const std::int32_t> results,
             std::int32_t output, std::size_t registers, std::size_t threads, std::size_t block,
             const std::string& instruction_set) {
    const bluegrad::Kernel& kernel = kernel_of(instruction_set);
    const bluegrad::Program program{code.data(),    weights.data(),     weights.size(), inputs.data(), inputs.size(),
                                    results.data(), results.size() / 2, output,         registers};
    const nb::gil_scoped_release release;
    bluegrad::advance(kernel, out.data(), start, out.size(), rows.data(), first, rows.shape(1), scale, stream.data(),
                      program, threads, block);
}

void words(Vector<std::uint32_t> out, Vector<const std::uint32_t> stream, std::uint64_t start,
           const std::string& instruction_set) {
    const bluegrad::Kernel& kernel = kernel_of(instruction_set);
    const nb::gil_scoped_release release;
    bluegrad::words(kernel, out.data(), start, out.size(), stream.data());
}

void transform(Vector<const std::uint32_t> first, Vector<const std::uint32_t> second, Vector<float> radius,
               Vector<float> cosine, Vector<float> sine, const std::string& instruction_set) {
    const bluegrad::Kernel& kernel = kernel_of(instruction_set);
    const nb::gil_scoped_release release;
    const bluegrad::DefaultArithmetic arithmetic;
    kernel.transform(first.data(), second.data(), first.size(), radius.data(), cosine.data(), sine.data());
}

void cipher_normals(Vector<const std::uint64_t> words, Vector<float> out, const std::string& instruction_set) {
    const bluegrad::Kernel& kernel = kernel_of(instruction_set);
    const nb::gil_scoped_release release;
    const bluegrad::DefaultArithmetic arithmetic;
    kernel.cipher_normals(words.data(), out.size() / 2, out.data());
}

}  // namespace

NB_MODULE(_native, module) {
    using namespace nb::literals;
    module.doc() = "Philox, Box-Muller and the weighted sum in one pass; see native/ in the sources.";
    module.def("instruction_sets", &instruction_sets, "Names of what this processor can run, fastest first.");
    module.def("philox", &philox, "counters"_a.noconvert(), "key"_a.noconvert(), "out"_a.noconvert(),
               "Write Philox4x32-10 of every counter to `out`.");
    module.def("accumulate", &accumulate, "out"_a.noconvert(), "factors"_a.noconvert(), "streams"_a.noconvert(),
               "start"_a, "threads"_a, "block"_a, "instruction_set"_a, "Add the weighted sum of streams to `out`.");
    module.def("advance", &advance, "out"_a.noconvert(), "start"_a, "rows"_a.noconvert(), "first"_a, "scale"_a,
               "stream"_a.noconvert(), "code"_a.noconvert(), "weights"_a.noconvert(), "inputs"_a.noconvert(),
               "results"_a.noconvert(), "output"_a, "registers"_a, "threads"_a, "block"_a, "instruction_set"_a,
               "Run a program on new noise and rows: add its output to `out` and write its results to the rows.");
    module.def("words", &words, "out"_a.noconvert(), "stream"_a.noconvert(), "start"_a, "instruction_set"_a,
               "Write a stream's words to `out`.");
    module.def("transform", &transform, "first"_a.noconvert(), "second"_a.noconvert(), "radius"_a.noconvert(),
               "cosine"_a.noconvert(), "sine"_a.noconvert(), "instruction_set"_a,
               "Write the radius of the first words, the cosine and the sine of the second.");
    module.def("cipher_normals", &cipher_normals, "words"_a.noconvert(), "out"_a.noconvert(), "instruction_set"_a,
               "Write two normals for each pair of words to `out`.");
}
