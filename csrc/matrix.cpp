#include <algorithm>

#include "matrix.h"

namespace slimformer {

namespace {

// Multiplications that a thread takes at once: enough to be worth the taking.
constexpr std::int64_t kShare = 1 << 16;

// Codes of a row one after the other.
template <class Take>
void read_codes(const PackedRows& packed, int row, const Take& take) {
    const Layout& layout = packed.layout;
    const std::uint8_t* bytes = packed.codes + static_cast<std::size_t>(row) * packed.row_bytes();
    for (int column = 0; column < packed.columns; bytes += layout.bytes) {
        std::uint64_t rest = 0;
        for (int i = 0; i < layout.bytes; i++) rest |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
        for (int digit = 0; digit < layout.digits && column < packed.columns; digit++, column++) {
            take(column, static_cast<int>(rest % layout.base) * layout.stride + layout.lowest);
            rest /= layout.base;
        }
    }
}

// Bits of the digits that stand for so many codes.
int bits_for(int codes) { return codes <= 4 ? 2 : codes <= 16 ? 4 : 8; }

// Puts a digit into a panel whose digits have 2 or 4 bits.
void put(std::uint8_t* panel, int bits, int output, int input, int digit) {
    const int step = input % kInputs / 4, per_byte = 8 / bits, shift = step % per_byte * bits;
    std::uint8_t& byte = panel[input / kInputs * 32 * bits + step / per_byte * 64 + output % kColumns * 4 + input % 4];
    byte = static_cast<std::uint8_t>((byte & ~(((1 << bits) - 1) << shift)) | digit << shift);
}

}  // namespace

Matrix::Matrix(int outputs, int inputs, bool bfloat16) : outputs_(outputs), inputs_(inputs), rounds_(false) {
    if (outputs < 1 || inputs < 1 || outputs > 1 << 24 || inputs > 1 << 16)
        throw InputError("a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs) +
                         " is none that these kernels multiply with");
    const std::size_t count = padded(outputs, kColumns) * inputs;
    if (bfloat16)
        bfloat16_.assign(count, 0);
    else
        floats_.assign(count, 0.0f);
    bias_.assign(padded(outputs, kColumns), 0.0f);
}

Matrix::Matrix(int outputs, int inputs, const Layout& layout, int group) : Matrix(outputs, inputs) {
    layout.check();
    const int length = static_cast<int>(padded(inputs, kInputs)), last = (layout.last - layout.first) / layout.stride;
    if (group < 1 || (group < inputs && group % kInputs != 0))
        throw InputError("groups of " + std::to_string(group) + "; the kernels take multiples of " + std::to_string(kInputs));
    rounds_ = true;
    codes_ = {outputs, inputs, bits_for(last + 1), last, layout.stride, layout.first, group < inputs ? group : length};
    floats_ = {};
    panels_.assign(parts_of(outputs, kColumns) * panel_bytes(inputs, codes_.bits), 0);
    scales_.assign(padded(outputs, kColumns) * parts_of(inputs, codes_.group), 0.0f);
}

void Matrix::check(int first, int rows, int columns) const {
    if (first < 0 || columns != inputs_ || rows > outputs_ - first)
        throw InputError("rows of another shape than the matrix");
}

void Matrix::set_rows(int first, const PackedRows& rows, const float* bias) {
    rows.check();
    check(first, rows.rows, rows.columns);
    if (!rounds()) throw InputError("codes for a matrix of floats");
    const Layout& layout = rows.layout;
    const int groups = parts_of(inputs_, codes_.group);
    if (layout.first != codes_.lowest || layout.stride != codes_.stride ||
        layout.last != codes_.lowest + codes_.stride * codes_.most || static_cast<int>(rows.groups()) != groups ||
        (groups > 1 && rows.group != codes_.group))
        throw InputError("codes of another kind than those of the matrix");
    const int bits = codes_.bits == 8 ? 4 : codes_.bits;
    for (int row = 0; row < rows.rows; row++) {
        const int output = first + row;
        std::uint8_t* panel = panels_.data() + output / kColumns * panel_bytes(inputs_, codes_.bits);
        read_codes(rows, row, [&](int column, int code) {
            const int digit = (code - layout.first) / layout.stride;
            if (code < layout.first || code > layout.last)
                throw InputError("a code of " + std::to_string(code) + " among those from " +
                                 std::to_string(layout.first) + " to " + std::to_string(layout.last));
            put(panel, bits, output, column, bits < codes_.bits ? digit % 16 : digit);
            if (bits < codes_.bits) put(panel + panel_bytes(inputs_, 4), bits, output, column, digit / 16);
        });
        for (int group = 0; group < groups; group++)
            scales_[group * padded(outputs_, kColumns) + output] = rows.scales[static_cast<std::size_t>(row) * groups + group];
        bias_[output] = bias == nullptr ? 0.0f : bias[row];
    }
}

template <class Weight>
void Matrix::fill_panels(Memory<Weight>& panels, int first, const Weight* rows, int count, const float* bias) {
    check(first, count, inputs_);
    if (panels.empty()) throw InputError("numbers of another kind than those of the matrix");
    for (int row = 0; row < count; row++) {
        const int output = first + row;
        Weight* panel = panels.data() + static_cast<std::size_t>(output / kColumns) * inputs_ * kColumns + output % kColumns;
        for (int column = 0; column < inputs_; column++)
            panel[static_cast<std::size_t>(column) * kColumns] = rows[static_cast<std::size_t>(row) * inputs_ + column];
        bias_[output] = bias == nullptr ? 0.0f : bias[row];
    }
}

void Matrix::set_rows(int first, const float* rows, int count, const float* bias) {
    fill_panels(floats_, first, rows, count, bias);
}

void Matrix::set_rows(int first, const std::uint16_t* bfloat16, int count, const float* bias) {
    fill_panels(bfloat16_, first, bfloat16, count, bias);
}

std::size_t Matrix::bytes() const {
    return panels_.size() + 2 * bfloat16_.size() + 4 * (floats_.size() + scales_.size() + bias_.size());
}

void Matrix::product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                     Activation activation, float* out, std::uint8_t* scratch) const {
    const int panels = parts_of(outputs_, kColumns);
    const std::int64_t panel = static_cast<std::int64_t>(rows) * inputs_ * kColumns;
    const std::int64_t enough = std::max<std::int64_t>(1, kShare / std::max<std::int64_t>(1, panel));
    const int size = static_cast<int>(padded(enough, kMostPanels));
    CodeMatrix codes = codes_;
    codes.panels = panels_.data(), codes.scales = scales_.data(), codes.bias = bias_.data();
    const FloatMatrix floats = {outputs_, inputs_, bfloat16_.empty() ? floats_.data() : nullptr, bfloat16_.data(), bias_.data()};
    team.share(parts_of(panels, size), [&](int part) {
        const int first = part * size, last = std::min(panels, (part + 1) * size);
        if (rounds())
            kernels.codes(rounded, rows, codes, activation, out, first, last, scratch);
        else
            kernels.floats(x, rows, floats, activation, out, first, last);
    });
}

void Matrix::multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                      float* out) const {
    if (rows < 0 || rows >= kMost) throw InputError("too many rows at once");
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
    } else if (bfloat16 != nullptr) {
        const std::uint16_t* from = bfloat16 + static_cast<std::size_t>(row) * columns;
        for (int i = 0; i < columns; i++) to[i] += widened(from[i]);
    } else {
        const float* scales = packed.scales + row * packed.groups();
        read_codes(packed, row, [&](int column, int code) {
            to[column] += static_cast<float>(code) * scales[column / packed.group];
        });
    }
}

}  // namespace slimformer
