// Which instruction sets this machine has, and what they need.
#include "dispatch.h"

#include <cstring>

namespace slimformer {

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

}  // namespace

const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> all = {
#if defined(__x86_64__)
        {&kAvx2, has_avx2()},
#endif
        {&kPortable, true},
    };
    return all;
}

const Kernels* find_kernels(const char* name) {
    for (const InstructionSet& set : instruction_sets())
        if (set.is_here && (name == nullptr || std::strcmp(set.kernels->name, name) == 0)) return set.kernels;
    return nullptr;
}

std::size_t attention_scratch(int length, int width) {
    const std::size_t keys = padded(length, kLanes), pairs = (width + 1) / 2;
    const std::size_t halves = keys * pairs * 2 + padded(4 * pairs * 2, 32);
    const std::size_t floats = keys + length * padded(width, kLanes) + 4 * keys;
    return halves * sizeof(std::int16_t) + floats * sizeof(float);
}

}  // namespace slimformer
