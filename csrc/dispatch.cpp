// Which instruction sets this machine has, and what they need.
#include "dispatch.h"

#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace slimformer {

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512;
#elif defined(__aarch64__)
extern const Kernels kNeon;
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
bool has_dot_product() {
#if defined(__APPLE__)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return false;
#endif
}
#endif

}  // namespace

const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> all = {
#if defined(__x86_64__)
        {&kAvx512, has_avx512()},
        {&kAvx2, has_avx2()},
#elif defined(__aarch64__)
        {&kNeon, has_dot_product()},
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

}  // namespace slimformer
