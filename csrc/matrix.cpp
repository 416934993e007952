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

// Where a digit of 2 or 4 bits lies: the byte of the panel, and the bits below it there.
struct Place {
    std::size_t byte;
    int shift;

    Place(int bits, int output, int input) {
        const int step = input % kInputs / 4, per_byte = 8 / bits;
        byte = static_cast<std::size_t>(input / kInputs) * 32 * bits + step / per_byte * 64 + output % kColumns * 4 + input % 4;
        shift = step % per_byte * bits;
    }
};

void put(std::uint8_t* panel, int bits, int output, int input, int digit) {
    const Place place(bits, output, input);
    std::uint8_t& byte = panel[place.byte];
    byte = static_cast<std::uint8_t>((byte & ~(((1 << bits) - 1) << place.shift)) | digit << place.shift);
}

int get(const std::uint8_t* panel, int bits, int output, int input) {
    const Place place(bits, output, input);
    return panel[place.byte] >> place.shift & ((1 << bits) - 1);
}

// One output of panels of codes as another one of panels of the same kind.
void copy_digits(const CodeMatrix& codes, int from, std::uint8_t* panels, int to) {
    const int bits = codes.bits == 8 ? 4 : codes.bits;
    const std::size_t bytes = panel_bytes(codes.inputs, codes.bits), half = panel_bytes(codes.inputs, 4);
    const std::uint8_t* const source = codes.panels + from / kColumns * bytes;
    std::uint8_t* const target = panels + to / kColumns * bytes;
    for (int input = 0; input < codes.inputs; input++) {
        put(target, bits, to, input, get(source, bits, from, input));
        if (bits < codes.bits) put(target + half, bits, to, input, get(source + half, bits, from, input));
    }
}

// The same of panels of floats of either kind; of the other kind there are none.
template <class Weight>
void copy_output(const Memory<Weight>& panels, int from, std::size_t inputs, Memory<Weight>& others, int to) {
    if (panels.empty()) return;
    const Weight* const source = panels.data() + from / kColumns * inputs * kColumns + from % kColumns;
    Weight* const target = others.data() + to / kColumns * inputs * kColumns + to % kColumns;
    for (std::size_t input = 0; input < inputs; input++) target[input * kColumns] = source[input * kColumns];
}

void check_size(int outputs, int inputs) {
    if (outputs < 1 || inputs < 1 || outputs > 1 << 24 || inputs > 1 << 16)
        throw InputError("a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs) +
                         " is none that these kernels multiply with");
}

}  // namespace

CodeMatrix code_matrix(int outputs, int inputs, const Layout& layout, int group) {
    check_size(outputs, inputs);
    layout.check();
    const int length = static_cast<int>(padded(inputs, kInputs)), last = (layout.last - layout.first) / layout.stride;
    if (group < 1 || (group < inputs && group % kInputs != 0))
        throw InputError("groups of " + std::to_string(group) + "; the kernels take multiples of " + std::to_string(kInputs));
    return {outputs, inputs, bits_for(last + 1), last, layout.stride, layout.first, group < inputs ? group : length};
}

void read_row(const CodeMatrix& codes, int output, std::int8_t* to) {
    const std::uint8_t* panel = codes.panels + output / kColumns * panel_bytes(codes.inputs, codes.bits);
    const int bits = codes.bits == 8 ? 4 : codes.bits;
    for (int input = 0; input < codes.inputs; input++) {
        int digit = get(panel, bits, output, input);
        if (bits < codes.bits) digit += get(panel + panel_bytes(codes.inputs, 4), bits, output, input) << 4;
        to[input] = static_cast<std::int8_t>(digit * codes.stride + codes.lowest);
    }
}

Matrix::Matrix(int outputs, int inputs, bool bfloat16) : outputs_(outputs), inputs_(inputs), rounds_(false) {
    check_size(outputs, inputs);
    const std::size_t count = padded(outputs, kColumns) * inputs;
    if (bfloat16)
        bfloat16_.assign(count, 0);
    else
        floats_.assign(count, 0.0f);
    bias_.assign(padded(outputs, kColumns), 0.0f);
}

Matrix::Matrix(int outputs, int inputs, const Layout& layout, int group)
    : outputs_(outputs), inputs_(inputs), rounds_(true), codes_(code_matrix(outputs, inputs, layout, group)) {
    panels_.assign(parts_of(outputs, kColumns) * panel_bytes(inputs, codes_.bits), 0);
    scales_.assign(padded(outputs, kColumns) * parts_of(inputs, codes_.group), 0.0f);
    bias_.assign(padded(outputs, kColumns), 0.0f);
}

Matrix::Matrix(const Matrix& kind, int outputs)
    : outputs_(outputs), inputs_(kind.inputs_), rounds_(kind.rounds_), codes_(kind.codes_) {
    codes_.outputs = outputs;
    const std::size_t count = padded(outputs, kColumns), floats = count * inputs_;
    if (rounds_) {
        panels_.assign(parts_of(outputs, kColumns) * panel_bytes(inputs_, codes_.bits), 0);
        scales_.assign(count * parts_of(inputs_, codes_.group), 0.0f);
    }
    if (!kind.floats_.empty()) floats_.assign(floats, 0.0f);
    if (!kind.bfloat16_.empty()) bfloat16_.assign(floats, 0);
    bias_.assign(count, 0.0f);
}

CodeMatrix Matrix::codes() const {
    CodeMatrix codes = codes_;
    codes.panels = panels_.data(), codes.scales = scales_.data(), codes.bias = bias_.data();
    return codes;
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

std::shared_ptr<Matrix> Matrix::select(const std::int32_t* chosen, int count) const {
    check_size(count, inputs_);
    for (int i = 0; i < count; i++)
        if (chosen[i] < 0 || chosen[i] >= outputs_)
            throw InputError("output " + std::to_string(chosen[i]) + " of a matrix of " + std::to_string(outputs_));
    const std::shared_ptr<Matrix> made(new Matrix(*this, count));
    const std::size_t before = padded(outputs_, kColumns), after = padded(count, kColumns);
    const auto groups = static_cast<int>(scales_.size() / before);
    for (int to = 0; to < count; to++) {
        const int from = chosen[to];
        made->bias_[to] = bias_[from];
        copy_output(floats_, from, inputs_, made->floats_, to);
        copy_output(bfloat16_, from, inputs_, made->bfloat16_, to);
        if (rounds()) copy_digits(codes(), from, made->panels_.data(), to);
        for (int group = 0; group < groups; group++) made->scales_[group * after + to] = scales_[group * before + from];
    }
    return made;
}

FloatMatrix Matrix::floats() const {
    return {outputs_, inputs_, bfloat16_.empty() ? floats_.data() : nullptr, bfloat16_.data(), bias_.data()};
}

std::size_t Matrix::bytes() const {
    return panels_.size() + 2 * bfloat16_.size() + 4 * (floats_.size() + scales_.size() + bias_.size());
}

int panels_at_once(int rows, int inputs) {
    const std::int64_t panel = static_cast<std::int64_t>(rows) * inputs * kColumns;
    const std::int64_t enough = std::max<std::int64_t>(1, kShare / std::max<std::int64_t>(1, panel));
    return static_cast<int>(padded(enough, kMostPanels));
}

namespace {

void share_codes(const Kernels& kernels, Team& team, const CodeMatrix& codes, const QuantizedRows& rounded, int rows,
                 Activation activation, float* out, std::uint8_t* scratch) {
    share_panels(team, codes.outputs, codes.inputs, rows, [&](int first, int last) {
        kernels.codes(rounded, rows, codes, activation, out, first, last, scratch);
    });
}

}  // namespace

void Matrix::product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                     Activation activation, float* out, std::uint8_t* scratch) const {
    if (rounds()) return share_codes(kernels, team, codes(), rounded, rows, activation, out, scratch);
    const FloatMatrix matrix = floats();
    share_panels(team, outputs_, inputs_, rows,
                 [&](int first, int last) { kernels.floats(x, rows, matrix, activation, out, first, last); });
}

void Matrix::product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                     const Prefix& prefix, float* out, std::uint8_t* scratch) const {
    const int panels = parts_of(prefix.outputs, kColumns), size = panels_at_once(rows, prefix.inputs);
    const int shares = parts_of(panels, size), height = outputs_ / prefix.parts;
    const Whole whole = {outputs_, inputs_, prefix.parts * prefix.outputs};
    team.share(prefix.parts * shares, [&](int share) {
        const int part = share / shares, first = share % shares * size, last = std::min(panels, first + size);
        const std::size_t skipped = static_cast<std::size_t>(part) * height;  // outputs
        float* const to = out + part * prefix.outputs;
        const float* const bias = bias_.data() + skipped;
        if (rounds()) {
            CodeMatrix codes = this->codes();
            codes.outputs = prefix.outputs, codes.inputs = prefix.inputs, codes.bias = bias, codes.whole = whole;
            codes.panels += skipped / kColumns * panel_bytes(inputs_, codes.bits), codes.scales += skipped;
            kernels.codes(rounded, rows, codes, Activation::none, to, first, last, scratch);
        } else {
            const bool halves = !bfloat16_.empty();
            const FloatMatrix floats = {prefix.outputs, prefix.inputs, halves ? nullptr : floats_.data() + skipped * inputs_,
                                        halves ? bfloat16_.data() + skipped * inputs_ : nullptr, bias, whole};
            kernels.floats(x, rows, floats, Activation::none, to, first, last);
        }
    });
}

void multiply_codes(const Kernels& kernels, Pool& pool, int threads, const CodeMatrix& codes, const float* x, int rows,
                    Activation activation, float* out) {
    if (rows < 0 || rows >= kMost) throw InputError("too many rows at once");
    RoundedRows rounded;
    rounded.hold(rows, codes.inputs);
    // Nothing in a parallel region may throw: the others would wait for ever.
    std::vector<Memory<std::uint8_t>> memory(std::max(1, std::min(threads, pool.threads())));
    for (auto& each : memory) each.resize(scratch_bytes(codes.inputs, codes.bits));
    pool.run(threads, [&](Team& team, int thread) {
        team.share(parts_of(rows, kRows),
                   [&](int tile) { kernels.quantize(x, rows, codes.inputs, rounded.view(), tile, tile + 1); });
        share_codes(kernels, team, codes, rounded.view(), rows, activation, out, memory[thread].data());
    });
}

void Matrix::multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                      float* out) const {
    if (rounds()) return multiply_codes(kernels, pool, threads, codes(), x, rows, activation, out);
    if (rows < 0 || rows >= kMost) throw InputError("too many rows at once");
    pool.run(threads,
             [&](Team& team, int) { product(kernels, team, x, QuantizedRows(), rows, activation, out, nullptr); });
}

std::size_t Table::bytes() const {
    if (rows == 0) return 0;
    const std::size_t row = floats != nullptr     ? 4 * static_cast<std::size_t>(columns)
                            : bfloat16 != nullptr ? 2 * static_cast<std::size_t>(columns)
                                                  : packed.row_bytes() + 4 * packed.groups();
    return rows * row;
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
