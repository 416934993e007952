#include <algorithm>

#include "encoder.h"

namespace slimformer {

namespace {

// Multiplications that a thread takes at once: enough to be worth the taking.
constexpr std::int64_t kShare = 1 << 16;

// Digits of a row of codes one after the other.
template <class Take>
void read_digits(const PackedRows& packed, int row, const Take& take) {
    const std::uint8_t* bytes = packed.codes + static_cast<std::size_t>(row) * packed.row_bytes();
    for (int column = 0; column < packed.columns; bytes++) {
        int rest = *bytes;
        for (int digit = 0; digit < packed.layout.digits && column < packed.columns; digit++, column++) {
            take(column, rest % packed.layout.base + packed.layout.lowest);
            rest /= packed.layout.base;
        }
    }
}

}  // namespace

Matrix::Matrix(int outputs, int inputs, Numbers numbers) : outputs_(outputs), inputs_(inputs), numbers_(numbers) {
    if (outputs < 1 || inputs < 1 || outputs > 1 << 24 || inputs > 1 << 16)
        throw InputError("a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs) +
                         " is none that these kernels multiply with");
    const std::size_t columns = padded(outputs, kColumns);
    if (rounds()) {
        codes_.assign(columns * padded(inputs, kInputs) / 4, 0x55);  // codes of 0
        scales_.assign(columns, 0.0f);
    } else {
        floats_.assign(columns * inputs, 0.0f);
    }
    bias_.assign(columns, 0.0f);
}

void Matrix::check(int first, int rows, int columns) const {
    if (first < 0 || columns != inputs_ || rows > outputs_ - first)
        throw InputError("rows of another shape than the matrix");
}

void Matrix::set_rows(int first, const PackedRows& rows, const float* scales, const float* bias) {
    check(first, rows.rows, rows.columns);
    if (!rounds()) throw InputError("codes for a matrix of floats");
    const std::size_t groups = padded(inputs_, kInputs) / kInputs;
    for (int row = 0; row < rows.rows; row++) {
        const int output = first + row;
        std::uint8_t* panel = codes_.data() + output / kColumns * groups * 64 + output % kColumns * 4;
        read_digits(rows, row, [&](int column, int code) {
            if (code < -1 || code > 1) throw InputError("a code of " + std::to_string(code) + ", which is not ternary");
            std::uint8_t& byte = panel[column / kInputs * 64 + column % 4];
            const int shift = column % kInputs / 4 * 2;
            byte = static_cast<std::uint8_t>((byte & ~(3 << shift)) | (code + 1) << shift);
        });
        scales_[output] = scales[row];
        bias_[output] = bias == nullptr ? 0.0f : bias[row];
    }
}

void Matrix::set_rows(int first, const float* rows, int count, const float* bias) {
    check(first, count, inputs_);
    if (rounds()) throw InputError("floats for a matrix of codes");
    for (int row = 0; row < count; row++) {
        const int output = first + row;
        float* panel = floats_.data() + static_cast<std::size_t>(output / kColumns) * inputs_ * kColumns + output % kColumns;
        for (int column = 0; column < inputs_; column++)
            panel[static_cast<std::size_t>(column) * kColumns] = rows[static_cast<std::size_t>(row) * inputs_ + column];
        bias_[output] = bias == nullptr ? 0.0f : bias[row];
    }
}

std::size_t Matrix::bytes() const { return codes_.size() + 4 * (floats_.size() + scales_.size() + bias_.size()); }

void Matrix::product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                     Activation activation, float* out, std::uint8_t* scratch) const {
    const int panels = parts_of(outputs_, kColumns);
    const std::int64_t panel = static_cast<std::int64_t>(rows) * inputs_ * kColumns;
    const int size = static_cast<int>(std::max<std::int64_t>(1, kShare / std::max<std::int64_t>(1, panel)));
    const TernaryMatrix codes = {outputs_, inputs_, codes_.data(), scales_.data(), bias_.data()};
    const FloatMatrix floats = {outputs_, inputs_, floats_.data(), bias_.data()};
    team.share(parts_of(panels, size), [&](int part) {
        const int first = part * size, last = std::min(panels, (part + 1) * size);
        if (rounds())
            kernels.ternary(rounded, rows, codes, activation, out, first, last, scratch);
        else
            kernels.floats(x, rows, floats, activation, out, first, last);
    });
}

void Matrix::multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                      float* out) const {
    RoundedRows rounded;
    if (rounds()) rounded.hold(rows, inputs_);
    // Nothing in a parallel region may throw: the others would wait for ever.
    std::vector<Memory<std::uint8_t>> memory(std::max(1, std::min(threads, pool.threads())));
    for (auto& each : memory) each.resize(scratch());
    pool.run(threads, [&](Team& team, int thread) {
        if (rounds())
            team.share(parts_of(rows, kRows),
                       [&](int tile) { kernels.quantize(x, rows, inputs_, rounded.view(), tile, tile + 1); });
        product(kernels, team, x, rounded.view(), rows, activation, out, memory[thread].data());
    });
}

void Table::add_row(int row, float* to) const {
    if (floats != nullptr) {
        const float* from = floats + static_cast<std::size_t>(row) * columns;
        for (int i = 0; i < columns; i++) to[i] += from[i];
    } else {
        const float scale = scales[row];
        read_digits(packed, row, [&](int column, int code) { to[column] += static_cast<float>(code) * scale; });
    }
}

}  // namespace slimformer
