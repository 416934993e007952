// AVX-512 for machines without it, by SIMDe: included ahead of avx512.cpp, whose instructions then are functions.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "SIMDe rounds the product of a fused multiply-add where the machine has none"
#endif

// Two conversions that SIMDe does not have yet, as those of the halves.
#if !defined(_mm512_cvttps_epi32)
inline simde__m512i emulated_cvttps_epi32(simde__m512 x) {
    simde__m512i result;
    for (int i = 0; i < 2; i++)
        simde_mm256_storeu_si256(reinterpret_cast<simde__m256i*>(&result) + i,
                                 simde_mm256_cvttps_epi32(reinterpret_cast<const simde__m256*>(&x)[i]));
    return result;
}
#define _mm512_cvttps_epi32(x) emulated_cvttps_epi32(x)
#endif

#if !defined(_mm512_cvtepi32_ps)
inline simde__m512 emulated_cvtepi32_ps(simde__m512i x) {
    simde__m512 result;
    for (int i = 0; i < 2; i++)
        simde_mm256_storeu_ps(reinterpret_cast<float*>(&result) + 8 * i,
                              simde_mm256_cvtepi32_ps(reinterpret_cast<const simde__m256i*>(&x)[i]));
    return result;
}
#define _mm512_cvtepi32_ps(x) emulated_cvtepi32_ps(x)
#endif
