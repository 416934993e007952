// Ternary matrices whose codes are drawn.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "encoder.h"

namespace slimformer {

// The layout of ternary files: four codes to a byte, the first one lowest, code = digit - 1.
constexpr Layout kTernary = {4, 4, -1, 1, 1, -1, 1};

inline std::shared_ptr<Matrix> random_matrix(int outputs, int inputs, std::mt19937& draw) {
    auto matrix = std::make_shared<Matrix>(outputs, inputs, kTernary, inputs);
    PackedRows rows;
    rows.rows = outputs, rows.columns = inputs, rows.group = inputs, rows.layout = kTernary;
    std::vector<std::uint8_t> codes(outputs * rows.row_bytes());
    for (auto& byte : codes)
        for (int digit = 0; digit < 4; digit++) byte = static_cast<std::uint8_t>(byte << 2 | draw() % 3);
    const std::vector<float> scales(outputs, 0.05f);
    rows.codes = codes.data(), rows.scales = scales.data();
    matrix->set_rows(0, rows, nullptr);
    return matrix;
}

}  // namespace slimformer
