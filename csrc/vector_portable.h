// 16 floats as an array: what the other instruction sets are compared with, bit by bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "unroll.h"

namespace slimformer::portable {

struct Floats {
    float lane[kLanes];
};

template <class Operation>
inline Floats each(Operation operation) {
    Floats result;
    for (int i = 0; i < kLanes; i++) result.lane[i] = operation(i);
    return result;
}

inline Floats load(const float* from) {
    Floats result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
}
inline void store(float* to, Floats x) { std::memcpy(to, x.lane, sizeof x.lane); }
inline Floats load(const std::uint16_t* bfloat16) { return each([=](int i) { return widened(bfloat16[i]); }); }
inline Floats fill(float value) { return each([=](int) { return value; }); }
inline Floats operator+(Floats a, Floats b) { return each([&](int i) { return a.lane[i] + b.lane[i]; }); }
inline Floats operator-(Floats a, Floats b) { return each([&](int i) { return a.lane[i] - b.lane[i]; }); }
inline Floats operator*(Floats a, Floats b) { return each([&](int i) { return a.lane[i] * b.lane[i]; }); }
inline Floats operator/(Floats a, Floats b) { return each([&](int i) { return a.lane[i] / b.lane[i]; }); }
inline Floats fma(Floats a, Floats b, Floats c) {
    return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
}
inline Floats max(Floats a, Floats b) { return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; }); }
inline Floats abs(Floats a) { return each([&](int i) { return std::fabs(a.lane[i]); }); }
inline Floats copy_sign(Floats a, Floats sign) {
    return each([&](int i) { return std::copysign(a.lane[i], sign.lane[i]); });
}
// To the nearest whole number, ties to even.
inline Floats round(Floats a) { return each([&](int i) { return std::nearbyint(a.lane[i]); }); }
// Where a < b the one, else the other.
inline Floats where_less(Floats a, Floats b, Floats one, Floats other) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? one.lane[i] : other.lane[i]; });
}
// 2^n for whole numbers n from -126 to 127; some number for others.
inline Floats power_of_two(Floats n) {
    return each([&](int i) {
        const bool fits = n.lane[i] >= -126.0f && n.lane[i] <= 127.0f;
        const std::uint32_t bits = static_cast<std::uint32_t>(fits ? static_cast<int>(n.lane[i]) + 127 : 127) << 23;
        float power;
        std::memcpy(&power, &bits, sizeof power);
        return power;
    });
}
inline float largest(Floats a) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.lane[i] = a.lane[i] > a.lane[i + half] ? a.lane[i] : a.lane[i + half];
    return a.lane[0];
}
inline float sum(Floats a) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.lane[i] = a.lane[i] + a.lane[i + half];
    return a.lane[0];
}
// Whole numbers from -127 to 127 as bytes; -128 for what is no number, as the other sets have it.
inline void store_bytes(std::int8_t* to, Floats a) {
    for (int i = 0; i < kLanes; i++) {
        const float value = a.lane[i];
        to[i] = value > -128.0f && value < 128.0f ? static_cast<std::int8_t>(value) : std::int8_t{-128};
    }
}
inline Floats from_integers(const std::int32_t* from) {
    return each([&](int i) { return static_cast<float>(from[i]); });
}
// stride * x + offset of whole numbers x.
inline Floats from_integers(const std::int32_t* from, std::int32_t stride, std::int32_t offset) {
    return each([&](int i) { return static_cast<float>(stride * from[i] + offset); });
}

// Four codes to a byte as one to a byte, [inputs / 4][16 columns][4].
inline void unpack_panel(const std::uint8_t* panel, int inputs, std::uint8_t* codes) {
    for (int k = 0; k < inputs; k += kInputs, panel += 64)
        for (int step = 0; step < 4; step++)
            for (int i = 0; i < 64; i++) *codes++ = panel[i] >> 2 * step & 3;
}

// Two digits to a byte as one to a byte, likewise.
inline void unpack_nibbles(const std::uint8_t* panel, int inputs, std::uint8_t* digits) {
    for (int k = 0; k < inputs; k += kInputs / 2, panel += 64)
        for (int step = 0; step < 2; step++)
            for (int i = 0; i < 64; i++) *digits++ = panel[i] >> 4 * step & 15;
}

// Tiles of rows that `multiply` takes at once; where it takes two, `rows` is twice that of a tile.
constexpr int kTilesAtOnce = 1;
constexpr int kPanelsAtOnce = 1;

// Sums of products of a tile of rows with 16 columns of digits: [rows][16]. The last number is for sets with sums of 16
// bits: the steps of four inputs after which they may be full.
template <int rows, int>
inline void multiply(const std::int8_t* x, const std::uint8_t* codes, std::size_t, int inputs, std::int32_t* sums, int) {
    std::memset(sums, 0, sizeof(std::int32_t) * rows * kColumns);
    for (int k = 0; k < inputs; k += 4, codes += 64, x += 4 * rows)
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < 64; i++) sums[row * kColumns + i / 4] += x[4 * row + i % 4] * codes[i];
}

// The same with codes as they are stored.
template <int rows, int>
inline void multiply_packed(const std::int8_t* x, const std::uint8_t* panel, std::size_t, int inputs, std::int32_t* sums, int) {
    std::memset(sums, 0, sizeof(std::int32_t) * rows * kColumns);
    for (int k = 0; k < inputs; k += kInputs, panel += 64)
        for (int step = 0; step < 4; step++, x += 4 * rows)
            for (int row = 0; row < rows; row++)
                for (int i = 0; i < 64; i++)
                    sums[row * kColumns + i / 4] += x[4 * row + i % 4] * (panel[i] >> 2 * step & 3);
}

// Products of queries with 16 keys: queries are [rows][pairs][2], keys [pairs][16][2], sums [rows][16].
template <int rows>
inline void score(const std::int16_t* queries, const std::int16_t* keys, int pairs, std::int32_t* sums) {
    std::memset(sums, 0, sizeof(std::int32_t) * rows * kLanes);
    for (int pair = 0; pair < pairs; pair++)
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < 2 * kLanes; i++)
                sums[row * kLanes + i / 2] += queries[2 * (row * pairs + pair) + i % 2] * keys[2 * kLanes * pair + i];
}

}  // namespace slimformer::portable
