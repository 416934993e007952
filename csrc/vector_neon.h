// 16 floats as four registers of NEON, and products of bytes by its dot product.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "unroll.h"

namespace slimformer::neon {

struct Floats {
    float32x4_t part[4];
};

template <class Operation>
inline __attribute__((always_inline)) Floats each(const Operation& operation) {
    return {{operation(0), operation(1), operation(2), operation(3)}};
}

inline Floats load(const float* from) {
    return each([=](int i) { return vld1q_f32(from + 4 * i); });
}
inline Floats load(const std::uint16_t* bfloat16) {
    return each([=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(bfloat16 + 4 * i), 16)); });
}
inline void store(float* to, Floats x) {
    repeat<4>([&](auto i) { vst1q_f32(to + 4 * i, x.part[i]); });
}
inline Floats fill(float value) {
    return each([=](int) { return vdupq_n_f32(value); });
}
inline Floats operator+(Floats a, Floats b) {
    return each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
}
inline Floats operator-(Floats a, Floats b) {
    return each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
}
inline Floats operator*(Floats a, Floats b) {
    return each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
}
inline Floats operator/(Floats a, Floats b) {
    return each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
}
inline Floats fma(Floats a, Floats b, Floats c) {
    return each([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
// The second where neither is larger, as the comparison of the portable one has it; the instruction for a maximum
// treats NaN and zeros of both signs otherwise.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Floats max(Floats a, Floats b) {
    return each([&](int i) { return larger(a.part[i], b.part[i]); });
}
inline Floats abs(Floats a) {
    return each([&](int i) { return vabsq_f32(a.part[i]); });
}
inline Floats copy_sign(Floats a, Floats sign) {
    const uint32x4_t mask = vdupq_n_u32(0x80000000u);
    return each([&](int i) { return vbslq_f32(mask, sign.part[i], a.part[i]); });
}
inline Floats round(Floats a) {
    return each([&](int i) { return vrndnq_f32(a.part[i]); });
}
inline Floats where_less(Floats a, Floats b, Floats one, Floats other) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), one.part[i], other.part[i]); });
}
inline Floats power_of_two(Floats n) {
    return each([&](int i) {
        const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n.part[i]), vdupq_n_s32(127));
        return vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
    });
}
inline float largest(Floats a) {
    const float32x4_t four = larger(larger(a.part[0], a.part[2]), larger(a.part[1], a.part[3]));
    const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
    const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
    const float first = vget_lane_f32(two, 0), second = vget_lane_f32(two, 1);
    return first > second ? first : second;
}
inline float sum(Floats a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
// -128 for what is no number, which the conversion would make 0.
inline void store_bytes(std::int8_t* to, Floats a) {
    const auto words = [&](int i) {
        const float32x4_t x = a.part[i];
        return vqmovn_s32(vbslq_s32(vceqq_f32(x, x), vcvtq_s32_f32(x), vdupq_n_s32(-128)));
    };
    const int8x8_t low = vqmovn_s16(vcombine_s16(words(0), words(1)));
    const int8x8_t high = vqmovn_s16(vcombine_s16(words(2), words(3)));
    vst1q_s8(to, vcombine_s8(low, high));
}
inline Floats from_integers(const std::int32_t* from) {
    return each([=](int i) { return vcvtq_f32_s32(vld1q_s32(from + 4 * i)); });
}
inline Floats from_integers(const std::int32_t* from, std::int32_t stride, std::int32_t offset) {
    return each([=](int i) {
        return vcvtq_f32_s32(vmlaq_s32(vdupq_n_s32(offset), vld1q_s32(from + 4 * i), vdupq_n_s32(stride)));
    });
}

// The codes of four columns and four inputs, out of the two bits of `step` of their bytes.
template <int step>
inline uint8x16_t codes_of(const std::uint8_t* panel) {
    uint8x16_t bytes = vld1q_u8(panel);
    if constexpr (step > 0) bytes = vshrq_n_u8(bytes, 2 * step);
    if constexpr (step < 3) bytes = vandq_u8(bytes, vdupq_n_u8(3));
    return bytes;
}

inline void unpack_panel(const std::uint8_t* panel, int inputs, std::uint8_t* codes) {
    for (int k = 0; k < inputs; k += kInputs, panel += 64, codes += 256) {
        repeat<4>([&](auto step) {
            repeat<4>([&](auto i) {
                vst1q_u8(codes + 64 * step + 16 * i, codes_of<decltype(step)::value>(panel + 16 * i));
            });
        });
    }
}

inline void unpack_nibbles(const std::uint8_t* panel, int inputs, std::uint8_t* digits) {
    for (int k = 0; k < inputs; k += kInputs / 2, panel += 64, digits += 128) {
        repeat<4>([&](auto i) {
            const uint8x16_t bytes = vld1q_u8(panel + 16 * i);
            vst1q_u8(digits + 16 * i, vandq_u8(bytes, vdupq_n_u8(15)));
            vst1q_u8(digits + 64 + 16 * i, vshrq_n_u8(bytes, 4));
        });
    }
}

// The sums of six rows take 24 of the 32 registers, so that one tile is all there is room for.
constexpr int kTilesAtOnce = 1;
constexpr int kPanelsAtOnce = 1;

// Sums of products of a tile of rows with the 16 columns of a panel, packed or not.
template <int rows, bool packed>
inline void add_products(const std::int8_t* x, const std::uint8_t* panel, int inputs, std::int32_t* total) {
    int32x4_t sums[rows][4];
    repeat<4 * rows>([&](auto i) { sums[i / 4][i % 4] = vdupq_n_s32(0); });
    for (int k = 0; k < inputs; k += kInputs, x += kInputs * rows, panel += packed ? 64 : 256) {
        repeat<16>([&](auto place) {
            constexpr int step = decltype(place)::value / 4, i = decltype(place)::value % 4;
            const uint8x16_t codes = packed ? codes_of<step>(panel + 16 * i) : vld1q_u8(panel + 16 * place);
            repeat<rows>([&](auto row) {
                // Four bytes of a row are a quarter of a register, whichever rows the others belong to.
                constexpr int quarter = step * rows + decltype(row)::value;
                const int8x16_t values = vld1q_s8(x + quarter / 4 * 16);
                sums[row][i] = vdotq_laneq_s32(sums[row][i], vreinterpretq_s8_u8(codes), values, quarter % 4);
            });
        });
    }
    repeat<4 * rows>([&](auto i) { vst1q_s32(total + 4 * i, sums[i / 4][i % 4]); });
}

template <int rows, int>
inline void multiply(const std::int8_t* x, const std::uint8_t* codes, std::size_t, int inputs, std::int32_t* total, int) {
    add_products<rows, false>(x, codes, inputs, total);
}

template <int rows, int>
inline void multiply_packed(const std::int8_t* x, const std::uint8_t* panel, std::size_t, int inputs, std::int32_t* total, int) {
    add_products<rows, true>(x, panel, inputs, total);
}

template <int rows>
inline void score(const std::int16_t* queries, const std::int16_t* keys, int pairs, std::int32_t* total) {
    int32x4_t sums[rows][4];
    repeat<4 * rows>([&](auto i) { sums[i / 4][i % 4] = vdupq_n_s32(0); });
    for (int pair = 0; pair < pairs; pair++, keys += 2 * kLanes) {
        // The first of every pair in one register, the second in another.
        const int16x8x2_t low = vld2q_s16(keys), high = vld2q_s16(keys + kLanes);
        repeat<rows>([&](auto row) {
            const std::int16_t* query = queries + 2 * (row * pairs + pair);
            repeat<2>([&](auto i) {
                const int16_t value = query[i];
                sums[row][0] = vmlal_n_s16(sums[row][0], vget_low_s16(low.val[i]), value);
                sums[row][1] = vmlal_n_s16(sums[row][1], vget_high_s16(low.val[i]), value);
                sums[row][2] = vmlal_n_s16(sums[row][2], vget_low_s16(high.val[i]), value);
                sums[row][3] = vmlal_n_s16(sums[row][3], vget_high_s16(high.val[i]), value);
            });
        });
    }
    repeat<4 * rows>([&](auto i) { vst1q_s32(total + 4 * i, sums[i / 4][i % 4]); });
}

}  // namespace slimformer::neon
