// How many 8-bit operations a second one thread does where nothing is read from memory.
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

namespace {

constexpr int kSums = 12;  // more than the latency of an instruction times how many begin in a cycle
constexpr std::int64_t kSteps = 400'000;

template <class Work>
double operations_a_second(int operations, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return static_cast<double>(operations) * kSums * kSteps / seconds.count();
}

__attribute__((target("avx2"))) void multiply_avx2() {
    __m256i sums[kSums] = {}, codes = _mm256_set1_epi8(1), values = _mm256_set1_epi8(2);
    for (std::int64_t step = 0; step < kSteps; step++) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
            asm volatile("" : "+x"(codes), "+x"(values));  // each product is computed, and not once for all
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, values));
        }
#pragma GCC unroll 12
        for (auto& sum : sums) asm volatile("" : "+x"(sum));
    }
}

__attribute__((target("avx512f,avx512vnni"))) void multiply_vnni() {
    __m512i sums[kSums] = {}, codes = _mm512_set1_epi8(1), values = _mm512_set1_epi8(2);
    for (std::int64_t step = 0; step < kSteps; step++) {
#pragma GCC unroll 12
        for (auto& sum : sums) {
            asm volatile("" : "+v"(codes), "+v"(values));
            sum = _mm512_dpbusd_epi32(sum, codes, values);
        }
#pragma GCC unroll 12
        for (auto& sum : sums) asm volatile("" : "+v"(sum));
    }
}

}  // namespace

extern "C" {

// A product and a sum count as two operations; 0 where the machine has no such instruction.
double peak_maddubs() { return __builtin_cpu_supports("avx2") ? operations_a_second(64, multiply_avx2) : 0; }

double peak_vpdpbusd() {
    const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
    return here ? operations_a_second(128, multiply_vnni) : 0;
}

}
#else
extern "C" {
double peak_maddubs() { return 0; }
double peak_vpdpbusd() { return 0; }
}
#endif
