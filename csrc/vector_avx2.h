// 16 floats as two registers of AVX2, with FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "unroll.h"

namespace slimformer::avx2 {

struct Floats {
    __m256 low, high;
};

inline Floats load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline __m256 widen(const std::uint16_t* from) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}
inline Floats load(const std::uint16_t* bfloat16) { return {widen(bfloat16), widen(bfloat16 + 8)}; }
inline void store(float* to, Floats x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
inline Floats fill(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// The second where neither is larger, as the comparison of the portable one has it.
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats abs(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Floats copy_sign(Floats a, Floats b) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const auto one = [&](__m256 x, __m256 y) { return _mm256_or_ps(_mm256_andnot_ps(sign, x), _mm256_and_ps(sign, y)); };
    return {one(a.low, b.low), one(a.high, b.high)};
}
inline Floats round(Floats a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
}
inline Floats where_less(Floats a, Floats b, Floats one, Floats other) {
    return {_mm256_blendv_ps(other.low, one.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(other.high, one.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline Floats power_of_two(Floats n) {
    const auto one = [](__m256 x) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvttps_epi32(x), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    };
    return {one(n.low), one(n.high)};
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline void store_bytes(std::int8_t* to, Floats a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvttps_epi32(a.low), _mm256_cvttps_epi32(a.high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0b11011000);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
inline __m256i integers(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store_integers(void* to, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
inline Floats from_integers(const std::int32_t* from) {
    return {_mm256_cvtepi32_ps(integers(from)), _mm256_cvtepi32_ps(integers(from + 8))};
}
inline Floats from_integers(const std::int32_t* from, std::int32_t stride, std::int32_t offset) {
    const auto half = [=](const std::int32_t* eight) {
        const __m256i whole = stride == 1 ? integers(eight) : _mm256_mullo_epi32(integers(eight), _mm256_set1_epi32(stride));
        return _mm256_cvtepi32_ps(_mm256_add_epi32(whole, _mm256_set1_epi32(offset)));
    };
    return {half(from), half(from + 8)};
}
inline __m256i spread(const void* four_bytes) {
    std::int32_t value;
    std::memcpy(&value, four_bytes, sizeof value);
    return _mm256_set1_epi32(value);
}

inline void unpack_panel(const std::uint8_t* panel, int inputs, std::uint8_t* codes) {
    const __m256i mask = _mm256_set1_epi8(3);
    for (int k = 0; k < inputs; k += kInputs, panel += 64, codes += 256) {
        __m256i low = integers(panel), high = integers(panel + 32);
        for (int step = 0; step < 4; step++) {
            store_integers(codes + 64 * step, _mm256_and_si256(low, mask));
            store_integers(codes + 64 * step + 32, _mm256_and_si256(high, mask));
            low = _mm256_srli_epi16(low, 2);
            high = _mm256_srli_epi16(high, 2);
        }
    }
}

inline void unpack_nibbles(const std::uint8_t* panel, int inputs, std::uint8_t* digits) {
    const __m256i lowest = _mm256_set1_epi8(15);
    for (int k = 0; k < inputs; k += kInputs / 2, panel += 64, digits += 128) {
        repeat<2>([&](auto half) {
            const __m256i bits = integers(panel + 32 * half);
            store_integers(digits + 32 * half, _mm256_and_si256(bits, lowest));
            store_integers(digits + 64 + 32 * half, _mm256_and_si256(_mm256_srli_epi16(bits, 4), lowest));
        });
    }
}

// Adds the products of four values of a row with the codes of 16 columns to sums of 16 bits. Written as instructions: a
// tile of six rows has a register for everything just so, and compilers that order them otherwise move sums to memory.
inline void add_products(__m256i (&sums)[2], __m256i low, __m256i high, const std::int8_t* values) {
#ifdef SANITIZED  // AddressSanitizer does not see what such instructions read
    for (int i = 0; i < 4; i++) static_cast<void>(*static_cast<const volatile std::int8_t*>(values + i));
#endif
    __m256i first = sums[0], second = sums[1], spread_values, product;
    asm("vpbroadcastd %[values], %[spread]\n\t"
        "vpmaddubsw %[spread], %[low], %[product]\n\t"
        "vpmaddubsw %[spread], %[high], %[spread]\n\t"
        "vpaddw %[product], %[first], %[first]\n\t"
        "vpaddw %[spread], %[second], %[second]"
        : [first] "+x"(first), [second] "+x"(second), [spread] "=&x"(spread_values), [product] "=&x"(product)
        : [low] "x"(low), [high] "x"(high), [values] "m"(*reinterpret_cast<const std::int8_t(*)[4]>(values)));
    sums[0] = first;
    sums[1] = second;
}

// One tile of sums is all there is room for.
constexpr int kTilesAtOnce = 1;
constexpr int kPanelsAtOnce = 1;

// Sums of 16 bits of a tile, two to a column.
template <int rows>
struct Sums {
    __m256i of[rows][2] = {};

    // Four inputs of every row with the codes of 16 columns.
    inline __attribute__((always_inline)) void add(__m256i low, __m256i high, const std::int8_t* x) {
        repeat<rows>([&](auto row) { add_products(of[row], low, high, x + 4 * row); });
    }

    // Moves them to sums of 32 bits.
    inline __attribute__((always_inline)) void widen(std::int32_t* total) {
        const __m256i ones = _mm256_set1_epi16(1);
        repeat<2 * rows>([&](auto place) {
            std::int32_t* to = total + 8 * place;
            __m256i& sum = of[place / 2][place % 2];
            store_integers(to, _mm256_add_epi32(integers(to), _mm256_madd_epi16(sum, ones)));
            sum = _mm256_setzero_si256();
        });
    }
};

template <int rows, int>
inline void multiply(const std::int8_t* x, const std::uint8_t* codes, std::size_t, int inputs, std::int32_t* total, int steps) {
    std::memset(total, 0, sizeof(std::int32_t) * rows * kColumns);
    Sums<rows> sums;
    for (int left = inputs / 4; left > 0; left -= steps) {
        const std::uint8_t* const end = codes + 64 * (left < steps ? left : steps);
        for (; codes != end; codes += 64, x += 4 * rows) sums.add(integers(codes), integers(codes + 32), x);
        sums.widen(total);
    }
}

template <int rows, int>
inline void multiply_packed(const std::int8_t* x, const std::uint8_t* panel, std::size_t, int inputs, std::int32_t* total, int steps) {
    std::memset(total, 0, sizeof(std::int32_t) * rows * kColumns);
    const __m256i mask = _mm256_set1_epi8(3);
    Sums<rows> sums;
    for (int left = inputs / 4; left > 0; left -= steps) {
        const std::uint8_t* const end = panel + 16 * (left < steps ? left : steps);
        for (; panel != end; panel += 64, x += 16 * rows) {
            repeat<4>([&](auto step) {
                const __m256i low = _mm256_srli_epi16(integers(panel), 2 * step);
                const __m256i high = _mm256_srli_epi16(integers(panel + 32), 2 * step);
                sums.add(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask), x + 4 * rows * step);
            });
        }
        sums.widen(total);
    }
}

template <int rows>
inline void score(const std::int16_t* queries, const std::int16_t* keys, int pairs, std::int32_t* total) {
    __m256i sums[rows][2] = {};
    for (int pair = 0; pair < pairs; pair++, keys += 2 * kLanes) {
        const __m256i low = integers(keys), high = integers(keys + kLanes);
#pragma GCC unroll 4
        for (int row = 0; row < rows; row++) {
            const __m256i query = spread(queries + 2 * (row * pairs + pair));
            sums[row][0] = _mm256_add_epi32(sums[row][0], _mm256_madd_epi16(query, low));
            sums[row][1] = _mm256_add_epi32(sums[row][1], _mm256_madd_epi16(query, high));
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < rows; row++) {
        store_integers(total + kLanes * row, sums[row][0]);
        store_integers(total + kLanes * row + 8, sums[row][1]);
    }
}

}  // namespace slimformer::avx2
