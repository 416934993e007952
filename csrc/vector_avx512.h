// 16 floats as one register of AVX-512, and products of bytes by VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "unroll.h"

namespace slimformer::avx512 {

struct Floats {
    __m512 all;
};

inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Floats load(const std::uint16_t* bfloat16) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bfloat16));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(all), 16))};
}
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x.all); }
inline Floats fill(float value) { return {_mm512_set1_ps(value)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.all, b.all)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.all, b.all)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.all, b.all)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
// The second where neither is larger, as the comparison of the portable one has it.
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.all, b.all)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.all)}; }
inline Floats copy_sign(Floats a, Floats sign) {
    constexpr int choose = 0xCA;  // bits of the second where the first has ones, else of the third
    const __m512i mask = _mm512_set1_epi32(INT32_MIN);
    return {_mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(mask, _mm512_castps_si512(sign.all), _mm512_castps_si512(a.all), choose))};
}
inline Floats round(Floats a) {
    return {_mm512_roundscale_ps(a.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Floats where_less(Floats a, Floats b, Floats one, Floats other) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.all, b.all, _CMP_LT_OQ), other.all, one.all)};
}
inline Floats power_of_two(Floats n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvttps_epi32(n.all), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

inline __m256 low_half(Floats a) { return _mm512_castps512_ps256(a.all); }
inline __m256 high_half(Floats a) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.all), 1));
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
// What is no number becomes the smallest integer, and that the smallest byte.
inline void store_bytes(std::int8_t* to, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvttps_epi32(a.all)));
}
inline __m512i integers(const void* from) { return _mm512_loadu_si512(from); }
inline void store_integers(void* to, __m512i x) { _mm512_storeu_si512(to, x); }
inline Floats from_integers(const std::int32_t* from) { return {_mm512_cvtepi32_ps(integers(from))}; }
inline Floats from_integers(const std::int32_t* from, std::int32_t stride, std::int32_t offset) {
    const __m512i whole = stride == 1 ? integers(from) : _mm512_mullo_epi32(integers(from), _mm512_set1_epi32(stride));
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(whole, _mm512_set1_epi32(offset)))};
}
inline __m512i spread(const void* four_bytes) {
    std::int32_t value;
    std::memcpy(&value, four_bytes, sizeof value);
    return _mm512_set1_epi32(value);
}

inline __m512i lowest_codes(__m512i bits) { return _mm512_and_si512(bits, _mm512_set1_epi8(3)); }

inline void unpack_panel(const std::uint8_t* panel, int inputs, std::uint8_t* codes) {
    for (int k = 0; k < inputs; k += kInputs, panel += 64, codes += 256) {
        __m512i bits = integers(panel);
        repeat<4>([&](auto step) {
            store_integers(codes + 64 * step, lowest_codes(bits));
            bits = _mm512_srli_epi16(bits, 2);
        });
    }
}

inline void unpack_nibbles(const std::uint8_t* panel, int inputs, std::uint8_t* digits) {
    const __m512i lowest = _mm512_set1_epi8(15);
    for (int k = 0; k < inputs; k += kInputs / 2, panel += 64, digits += 128) {
        const __m512i bits = integers(panel);
        store_integers(digits, _mm512_and_si512(bits, lowest));
        store_integers(digits + 64, _mm512_and_si512(_mm512_srli_epi16(bits, 4), lowest));
    }
}

// A sum waits four or five cycles for the one before it, while one or two begin in each: that takes ten at once. Twelve
// rows of two panels are 24, so that every four values that are loaded serve two products.
constexpr int kTilesAtOnce = 2;
constexpr int kPanelsAtOnce = 2;
constexpr int kSumsAtOnce = 12;

// Sums of products of rows with the columns of panels, packed or not, that lie `next` bytes apart: [rows][panels][16].
// Few rows have several sums for each panel, of every second or fourth step.
template <int rows, int panels, bool packed>
inline void add_products(const std::int8_t* x, const std::uint8_t* panel, std::size_t next, int inputs, std::int32_t* total) {
    constexpr int count = rows * panels, parts = 4 * count <= kSumsAtOnce ? 4 : 2 * count <= kSumsAtOnce ? 2 : 1;
    constexpr int tile = rows < kRows ? rows : kRows;
    const std::ptrdiff_t next_tile = static_cast<std::ptrdiff_t>(kRows) * inputs;
    __m512i sums[count][parts];
    repeat<count * parts>([&](auto i) { sums[i / parts][i % parts] = _mm512_setzero_si512(); });
    for (int k = 0; k < inputs; k += kInputs, x += kInputs * tile, panel += packed ? 64 : 256) {
        __m512i bits[panels];
        if constexpr (packed) repeat<panels>([&](auto i) { bits[i] = integers(panel + i * next); });
        repeat<4>([&](auto step) {
            __m512i codes[panels];
            repeat<panels>([&](auto i) {
                if constexpr (packed) {
                    codes[i] = lowest_codes(bits[i]);
                    bits[i] = _mm512_srli_epi16(bits[i], 2);
                } else {
                    codes[i] = integers(panel + i * next + 64 * step);
                }
            });
            repeat<rows>([&](auto row) {
                const __m512i values = spread(x + row / kRows * next_tile + 4 * (tile * step + row % kRows));
                repeat<panels>([&](auto i) {
                    __m512i& here = sums[row * panels + i][step % parts];
                    here = _mm512_dpbusd_epi32(here, codes[i], values);
                });
            });
        });
    }
    repeat<count>([&](auto i) {
        repeat<parts - 1>([&](auto part) { sums[i][0] = _mm512_add_epi32(sums[i][0], sums[i][part + 1]); });
        store_integers(total + kColumns * i, sums[i][0]);
    });
}

template <int rows, int panels>
inline void multiply(const std::int8_t* x, const std::uint8_t* codes, std::size_t next, int inputs, std::int32_t* total, int) {
    add_products<rows, panels, false>(x, codes, next, inputs, total);
}

template <int rows, int panels>
inline void multiply_packed(const std::int8_t* x, const std::uint8_t* panel, std::size_t next, int inputs,
                            std::int32_t* total, int) {
    add_products<rows, panels, true>(x, panel, next, inputs, total);
}

template <int rows>
inline void score(const std::int16_t* queries, const std::int16_t* keys, int pairs, std::int32_t* total) {
    __m512i sums[rows];
    repeat<rows>([&](auto row) { sums[row] = _mm512_setzero_si512(); });
    for (int pair = 0; pair < pairs; pair++, keys += 2 * kLanes) {
        const __m512i here = integers(keys);
        repeat<rows>([&](auto row) {
            sums[row] = _mm512_dpwssd_epi32(sums[row], here, spread(queries + 2 * (row * pairs + pair)));
        });
    }
    repeat<rows>([&](auto row) { store_integers(total + kLanes * row, sums[row]); });
}

}  // namespace slimformer::avx512
