#include "encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace slimformer {

namespace {

// Multiplications that a thread takes at once: enough to be worth the taking.
constexpr std::int64_t kShare = 1 << 16;

int parts_of(int count, int size) { return (count + size - 1) / size; }

int panels_at_once(int rows, const TernaryMatrix& w) {
    const std::int64_t panel = static_cast<std::int64_t>(rows) * w.inputs * kColumns;
    return static_cast<int>(std::max<std::int64_t>(1, kShare / std::max<std::int64_t>(1, panel)));
}

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

struct Rows {
    std::vector<std::int8_t> values;
    std::vector<float> scales;
    std::vector<std::int32_t> sums;

    void hold(std::size_t rows, std::size_t inputs) {
        const std::size_t length = padded(inputs, kInputs);
        if (values.size() < rows * length) values.resize(rows * length);
        if (scales.size() < rows) scales.resize(rows), sums.resize(rows);
    }
    QuantizedRows view() { return {values.data(), scales.data(), sums.data()}; }
};

void grow(std::vector<float>& floats, std::size_t size) {
    if (floats.size() < size) floats.resize(size);
}

void product(const Kernels& kernels, Team& team, const QuantizedRows& x, int rows, const TernaryMatrix& w,
             Activation activation, float* out, std::uint8_t* scratch) {
    const int panels = parts_of(w.outputs, kColumns), size = panels_at_once(rows, w);
    team.share(parts_of(panels, size), [&](int part) {
        kernels.ternary(x, rows, w, activation, out, w.outputs, part * size, std::min(panels, (part + 1) * size), scratch);
    });
}

}  // namespace

Matrix::Matrix(int outputs, int inputs) : outputs_(outputs), inputs_(inputs) {
    if (outputs < 1 || inputs < 1 || outputs > 1 << 24 || inputs > 1 << 16)
        throw InputError("a matrix of " + std::to_string(outputs) + " x " + std::to_string(inputs) +
                         " is none that these kernels multiply with");
    const std::size_t columns = padded(outputs, kColumns);
    panels_.assign(columns * padded(inputs, kInputs) / 4, 0x55);  // codes of 0
    scales_.assign(columns, 0.0f);
    bias_.assign(columns, 0.0f);
}

void Matrix::set_rows(int first, const PackedRows& rows, const float* scales, const float* bias) {
    if (first < 0 || rows.columns != inputs_ || rows.rows > outputs_ - first)
        throw InputError("rows of another shape than the matrix");
    const std::size_t groups = padded(inputs_, kInputs) / kInputs;
    for (int row = 0; row < rows.rows; row++) {
        const int output = first + row;
        std::uint8_t* panel = panels_.data() + output / kColumns * groups * 64 + output % kColumns * 4;
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

TernaryMatrix Matrix::view() const { return {outputs_, inputs_, panels_.data(), scales_.data(), bias_.data()}; }

std::size_t Matrix::bytes() const { return panels_.size() + 4 * (scales_.size() + bias_.size()); }

void Matrix::multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                      float* out) const {
    Rows quantized;
    quantized.hold(rows, inputs_);
    const TernaryMatrix w = view();
    // Nothing in a parallel region may throw: the others would wait for ever.
    std::vector<std::vector<std::uint8_t>> scratch(std::max(1, std::min(threads, pool.threads())));
    for (auto& each : scratch) each.resize(padded(inputs_, kInputs) * kColumns);
    pool.run(threads, [&](Team& team, int thread) {
        team.share(parts_of(rows, kRows),
                   [&](int tile) { kernels.quantize(x, rows, inputs_, quantized.view(), tile, tile + 1); });
        product(kernels, team, quantized.view(), rows, w, activation, out, scratch[thread].data());
    });
}

void Table::add_row(int row, int columns, float* to) const {
    if (floats != nullptr) {
        const float* from = floats + static_cast<std::size_t>(row) * columns;
        for (int i = 0; i < columns; i++) to[i] += from[i];
    } else {
        const float scale = scales[row];
        read_digits(packed, row, [&](int column, int code) { to[column] += static_cast<float>(code) * scale; });
    }
}

struct Encoder::Workspace {
    std::vector<float> hidden, wide, context, pooled[2];
    Rows rows, wide_rows;
    std::vector<std::vector<std::uint8_t>> scratch;  // of each thread

    void hold(const Shape& shape, int tokens, int longest, int threads) {
        const std::size_t count = tokens, hidden_size = shape.hidden, ffn = shape.ffn;
        grow(hidden, count * hidden_size);
        grow(context, count * hidden_size);
        grow(wide, count * std::max(3 * hidden_size, ffn));
        rows.hold(count, hidden_size);
        wide_rows.hold(count, ffn);
        if (scratch.size() < static_cast<std::size_t>(threads)) scratch.resize(threads);
        const std::size_t panel = padded(std::max(hidden_size, ffn), kInputs) * kColumns;
        const std::size_t bytes = std::max(panel, attention_scratch(longest, shape.hidden / shape.heads));
        for (auto& each : scratch)
            if (each.size() < bytes) each.resize(bytes);
    }
};

Encoder::Encoder(Shape shape, Table words, Table positions, Table types, FloatNorm norm)
    : shape_(shape), words_(words), positions_(positions), types_(types), norm_(std::move(norm)) {
    if (shape.position_offset < 0 || shape.hidden < 1 || shape.heads < 1 || shape.hidden % shape.heads != 0 || shape.ffn < 1)
        throw InputError("a shape of " + std::to_string(shape.hidden) + " with " + std::to_string(shape.heads) +
                         " heads and an ffn of " + std::to_string(shape.ffn));
}

Encoder::~Encoder() = default;

void Encoder::add_block(Block block) {
    const auto fits = [](const auto& matrix, int outputs, int inputs) {
        if (matrix == nullptr || matrix->outputs() != outputs || matrix->inputs() != inputs)
            throw InputError("a matrix of a block is not " + std::to_string(outputs) + " x " + std::to_string(inputs));
    };
    fits(block.qkv, 3 * shape_.hidden, shape_.hidden);
    fits(block.output, shape_.hidden, shape_.hidden);
    fits(block.up, shape_.ffn, shape_.hidden);
    fits(block.down, shape_.hidden, shape_.ffn);
    blocks_.push_back(std::move(block));
}

void Encoder::add_head_layer(HeadLayer layer) {
    if (layer.inputs != outputs()) throw InputError("a layer of the head reads another width than it is given");
    head_.push_back(std::move(layer));
}

void Encoder::check(const std::int32_t* ids, const std::int32_t* types, const std::int32_t* starts,
                    int sequences) const {
    const int longest = positions_.rows - shape_.position_offset;
    for (int i = 0; i < sequences; i++) {
        const int length = starts[i + 1] - starts[i];
        if (length < 1 || length > longest)
            throw InputError("a sequence of " + std::to_string(length) + " tokens; give 1 to " + std::to_string(longest));
    }
    for (int i = 0; i < starts[sequences]; i++) {
        if (ids[i] < 0 || ids[i] >= words_.rows)
            throw InputError("token " + std::to_string(ids[i]) + " of a vocabulary of " + std::to_string(words_.rows));
        if (types != nullptr && (types[i] < 0 || types[i] >= types_.rows))
            throw InputError("a token of type " + std::to_string(types[i]) + " of " + std::to_string(types_.rows));
    }
}

void Encoder::run(const Kernels& kernels, Pool& pool, int threads, const std::int32_t* ids, const std::int32_t* types,
                  const std::int32_t* starts, int sequences, float* out) const {
    if (sequences == 0) return;
    check(ids, types, starts, sequences);
    std::unique_ptr<Workspace> work;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!free_.empty()) {
            work = std::move(free_.back());
            free_.pop_back();
        }
    }
    if (work == nullptr) work = std::make_unique<Workspace>();
    int longest = 0;
    for (int i = 0; i < sequences; i++) longest = std::max(longest, starts[i + 1] - starts[i]);
    work->hold(shape_, starts[sequences], longest, std::max(1, std::min(threads, pool.threads())));
    pool.run(threads, [&](Team& team, int thread) {
        forward(kernels, team, thread, ids, types, starts, sequences, *work);
    });
    answer(kernels, starts, sequences, *work, out);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(work));
}

void Encoder::forward(const Kernels& kernels, Team& team, int thread, const std::int32_t* ids,
                      const std::int32_t* types, const std::int32_t* starts, int sequences, Workspace& work) const {
    const int tokens = starts[sequences], hidden = shape_.hidden, tiles = parts_of(tokens, kRows);
    float *x = work.hidden.data(), *wide = work.wide.data(), *context = work.context.data();
    std::uint8_t* scratch = work.scratch[thread].data();
    const QuantizedRows rows = work.rows.view(), wide_rows = work.wide_rows.view();
    const auto last_row = [&](int tile) { return std::min(tokens, (tile + 1) * kRows); };

    team.share(tiles, [&](int tile) {
        int sequence = static_cast<int>(std::upper_bound(starts, starts + sequences, tile * kRows) - starts) - 1;
        for (int token = tile * kRows; token < last_row(tile); token++) {
            while (token >= starts[sequence + 1]) sequence++;
            float* row = x + static_cast<std::size_t>(token) * hidden;
            std::fill(row, row + hidden, 0.0f);
            words_.add_row(ids[token], hidden, row);
            if (types_.rows > 0) types_.add_row(types == nullptr ? 0 : types[token], hidden, row);
            positions_.add_row(token - starts[sequence] + shape_.position_offset, hidden, row);
        }
        kernels.norm(x, nullptr, hidden, norm_.view(), x, tile * kRows, last_row(tile));
        kernels.quantize(x, tokens, hidden, rows, tile, tile + 1);
    });

    // Norm of what a sub-layer computed and what it read, which then is quantized for the next one.
    const auto add_and_norm = [&](const FloatNorm& norm) {
        team.share(tiles, [&](int tile) {
            kernels.norm(context, x, hidden, norm.view(), x, tile * kRows, last_row(tile));
            kernels.quantize(x, tokens, hidden, rows, tile, tile + 1);
        });
    };
    const int width = hidden / shape_.heads;
    const Attention attention = {wide, context, starts, shape_.heads, width, 1.0f / std::sqrt(static_cast<float>(width))};
    for (const Block& block : blocks_) {
        product(kernels, team, rows, tokens, block.qkv->view(), Activation::none, wide, scratch);
        team.share(sequences * shape_.heads, [&](int part) {
            kernels.attend(attention, part / shape_.heads, part % shape_.heads, scratch);
        });
        team.share(tiles, [&](int tile) { kernels.quantize(context, tokens, hidden, rows, tile, tile + 1); });
        product(kernels, team, rows, tokens, block.output->view(), Activation::none, context, scratch);
        add_and_norm(block.attention_norm);
        product(kernels, team, rows, tokens, block.up->view(), shape_.activation, wide, scratch);
        team.share(tiles, [&](int tile) { kernels.quantize(wide, tokens, shape_.ffn, wide_rows, tile, tile + 1); });
        product(kernels, team, wide_rows, tokens, block.down->view(), Activation::none, context, scratch);
        add_and_norm(block.output_norm);
    }
}

void Encoder::answer(const Kernels& kernels, const std::int32_t* starts, int sequences, Workspace& work, float* out) const {
    const int tokens = starts[sequences], hidden = shape_.hidden;
    const float* x = work.hidden.data();
    const int count = pooling_ == Pooling::tokens ? tokens : sequences;
    std::vector<float>* pooled = work.pooled;
    grow(pooled[0], static_cast<std::size_t>(count) * hidden);
    for (int i = 0; i < count; i++) {
        float* to = pooled[0].data() + static_cast<std::size_t>(i) * hidden;
        const int first = pooling_ == Pooling::tokens ? i : starts[i];
        std::copy_n(x + static_cast<std::size_t>(first) * hidden, hidden, to);
        if (pooling_ != Pooling::mean) continue;
        for (int token = first + 1; token < starts[i + 1]; token++)
            for (int j = 0; j < hidden; j++) to[j] += x[static_cast<std::size_t>(token) * hidden + j];
        const float length = static_cast<float>(starts[i + 1] - first);
        for (int j = 0; j < hidden; j++) to[j] /= length;
    }
    Team alone(1);
    int here = 0;
    for (const HeadLayer& layer : head_) {
        grow(pooled[1 - here], static_cast<std::size_t>(count) * layer.outputs);
        const float* from = pooled[here].data();
        float* to = pooled[1 - here].data();
        if (layer.matrix != nullptr) {
            Rows quantized;
            quantized.hold(count, layer.inputs);
            kernels.quantize(from, count, layer.inputs, quantized.view(), 0, parts_of(count, kRows));
            std::vector<std::uint8_t> panel(padded(layer.inputs, kInputs) * kColumns);
            product(kernels, alone, quantized.view(), count, layer.matrix->view(), layer.activation, to, panel.data());
        } else {
            for (int i = 0; i < count; i++)
                kernels.dense(from + static_cast<std::size_t>(i) * layer.inputs, layer.weight.data(), layer.bias.data(),
                              layer.inputs, layer.outputs, layer.activation,
                              to + static_cast<std::size_t>(i) * layer.outputs);
        }
        here = 1 - here;
    }
    std::copy_n(pooled[here].data(), static_cast<std::size_t>(count) * outputs(), out);
}

}  // namespace slimformer
