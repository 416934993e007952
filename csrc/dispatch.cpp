// Which instruction sets this machine has, and what they need.
#include "dispatch.h"

#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#elif defined(__x86_64__)
#include <cpuid.h>
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
// Asked by hand: what compilers have built in for it is in a library that not all of them link.
bool has_bit(unsigned leaf, unsigned word, unsigned bit) {
    unsigned words[4] = {};
    return __get_cpuid_count(leaf, 0, &words[0], &words[1], &words[2], &words[3]) != 0 && (words[word] >> bit & 1u) != 0;
}

// Whether the system saves the registers of these bits.
bool saves(unsigned bits) {
    if (!has_bit(1, 2, 27)) return false;
    unsigned low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & bits) == bits;
}

// AVX2 and FMA, with registers of 256 bits.
bool has_avx2() { return saves(0x06) && has_bit(7, 1, 5) && has_bit(1, 2, 12); }

// AVX-512 F, BW and VNNI, with masks and all registers of 512 bits.
bool has_avx512() {
    return saves(0xe6) && has_avx2() && has_bit(7, 1, 16) && has_bit(7, 1, 30) && has_bit(7, 2, 11);
}
#elif defined(__aarch64__)
bool has_dot_product() {
#if defined(__APPLE__)
    return true;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(_WIN32)
    return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE) != 0;
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
