// Fuzzes matrices, encoders, decoders and kernels: a string of bytes chooses shapes, numbers and calls, valid or not.
//
//     fuzz SEED COUNT INPUTS
//
// draws so many strings, after products of every number of inputs up to INPUTS in every layout; compiled with
// FUZZ_BY_COVERAGE, libFuzzer makes the strings. To be built with AddressSanitizer and
// UBSan: every array has just the size that a call may read or write. An `InputError` is an answer like any other; every
// instruction set, with any number of threads, must give the answer of the portable one to the last bit.
#include <algorithm>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../decoder.h"
#include "../dispatch.h"
#include "../encoder.h"

using namespace slimformer;

namespace {

// Numbers that a string of bytes stands for; behind its end there are zeros, which choose what is usual.
class Bytes {
   public:
    Bytes(const std::uint8_t* data, std::size_t size) : next_(data), end_(data + size) {}

    int byte() { return next_ == end_ ? 0 : *next_++; }
    int between(int least, int most) { return least + (byte() + (most - least > 255 ? 256 * byte() : 0)) % (most - least + 1); }
    bool one_in(int count) { return between(1, count) == count; }
    // Mostly small, at times more than two vectors; a string should take less than a millisecond.
    int size() { return one_in(16) ? between(1, 40) : between(1, 18); }
    // What is usual, and now and then what nobody expects.
    int mostly(int usual) {
        if (!one_in(64)) return usual;
        const int odd[] = {0, -1, 1, INT_MAX, INT_MIN, 1 << 16, 1 << 24, usual ^ 1, ~usual, between(-300, 300)};
        return odd[between(0, static_cast<int>(std::size(odd)) - 1)];
    }
    // One byte for all of them, or two: shapes are what is looked for.
    template <class Number>
    std::vector<Number> numbers(std::size_t count, std::int64_t least, std::int64_t most) {
        std::minstd_rand draw(static_cast<unsigned>(byte()) + 1);
        std::vector<Number> result(count);
        for (Number& each : result) each = static_cast<Number>(least + draw() % std::max<std::int64_t>(1, most - least + 1));
        return result;
    }
    std::vector<float> floats(std::size_t count) {
        constexpr float infinity = std::numeric_limits<float>::infinity();
        const float odd[] = {0.0f, -0.0f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 1e-45f, 3e38f, -3e38f};
        std::minstd_rand draw(static_cast<unsigned>(byte()) + 1);
        const int kind = byte(), exponent = kind % 4 == 0 ? kind / 2 - 64 : 0;
        std::vector<float> result(count);
        for (float& each : result) {
            each = std::ldexp(static_cast<float>(draw()) / 1073741824.0f - 1.0f, exponent);
            if (kind % 8 == 7 && draw() % 16 == 0) each = odd[draw() % std::size(odd)];
        }
        return result;
    }

   private:
    const std::uint8_t *next_, *end_;
};

// Refuses what would take long, as a caller that has to find the memory does.
std::size_t affordable(double count) {
    if (count > 1 << 16) throw InputError("more than is tried here");
    return static_cast<std::size_t>(std::max(0.0, count));
}

Activation draw_activation(Bytes& bytes) { return static_cast<Activation>(bytes.between(0, 5)); }

// Those of files.
const Layout kLayouts[] = {{4, 4, -2, 1, 1, -1, 1}, {3, 5, -1, 1, 1, -1, 1}, {2, 8, -1, 2, 1, -1, 1}, {4, 4, -3, 2, 1, -3, 3},
                           {8, 8, -7, 2, 3, -7, 7}, {16, 2, -8, 1, 1, -8, 7}, {256, 1, -128, 1, 1, -128, 127}};

Layout draw_layout(Bytes& bytes) {
    Layout layout = kLayouts[bytes.between(0, static_cast<int>(std::size(kLayouts)) - 1)];
    if (bytes.one_in(8))
        for (int* field : {&layout.base, &layout.digits, &layout.lowest, &layout.stride, &layout.bytes, &layout.first, &layout.last})
            *field = bytes.one_in(4) ? bytes.between(-8, 8) : bytes.mostly(*field);
    return layout;
}

// Rows of codes, and the memory that they lie in.
struct Packed {
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
    PackedRows rows;

    Packed(Bytes& bytes, int count, int columns, int group, const Layout& layout)
        : rows{nullptr, nullptr, count, columns, group, layout} {
        rows.check();
        codes = bytes.numbers<std::uint8_t>(affordable(1.0 * count * static_cast<double>(rows.row_bytes())), 0, 255);
        if (!bytes.one_in(8)) use_digits_of_codes();
        scales = bytes.floats(affordable(1.0 * count * static_cast<double>(rows.groups())));
        rows.codes = codes.data(), rows.scales = scales.data();
    }

   private:
    void use_digits_of_codes() {
        const Layout& layout = rows.layout;
        const int first = (layout.first - layout.lowest) / layout.stride, used = (layout.last - layout.first) / layout.stride + 1;
        for (std::size_t unit = 0; unit + layout.bytes <= codes.size(); unit += layout.bytes) {
            std::uint64_t all = 0;
            for (int digit = 0; digit < layout.digits; digit++)
                all = all * layout.base + first + (codes[unit] + digit) % used;
            for (int i = 0; i < layout.bytes; i++) codes[unit + i] = static_cast<std::uint8_t>(all >> 8 * i);
        }
    }
};

struct MatrixKind {
    int outputs, inputs;
    bool rounds;
    Layout layout;
    int group;
};

MatrixKind draw_kind(Bytes& bytes, int outputs, int inputs, bool rounds) {
    outputs = bytes.mostly(outputs), inputs = bytes.mostly(inputs);
    const Layout layout = draw_layout(bytes);
    return {outputs, inputs, rounds, layout, bytes.mostly(bytes.one_in(4) ? 16 * bytes.between(1, 4) : inputs)};
}

std::shared_ptr<Matrix> make_matrix(Bytes& bytes, const MatrixKind& kind) {
    const auto [outputs, inputs, rounds, layout, group] = kind;
    if (outputs > 0 && outputs <= 1 << 24 && inputs > 0 && inputs <= 1 << 16) affordable(1.0 * outputs * inputs);
    const auto matrix = rounds ? std::make_shared<Matrix>(outputs, inputs, layout, group) : std::make_shared<Matrix>(outputs, inputs);
    for (int first = 0; first < outputs;) {
        const int count = bytes.mostly(bytes.one_in(4) ? bytes.between(1, outputs - first) : outputs - first);
        const std::vector<float> bias = bytes.floats(affordable(count));
        const float* biases = bytes.one_in(4) ? nullptr : bias.data();
        const int at = bytes.mostly(first);
        if (rounds != bytes.one_in(64)) {
            const Packed packed(bytes, count, bytes.mostly(inputs), bytes.mostly(group), bytes.one_in(64) ? draw_layout(bytes) : layout);
            matrix->set_rows(at, packed.rows, biases);
        } else {
            const std::vector<float> rows = bytes.floats(affordable(1.0 * count * inputs));
            matrix->set_rows(at, rows.data(), count, biases);
        }
        first += std::max(1, count);
    }
    return matrix;
}

std::shared_ptr<Matrix> draw_matrix(Bytes& bytes, int outputs, int inputs, bool rounds) {
    return make_matrix(bytes, draw_kind(bytes, outputs, inputs, rounds));
}

std::vector<float> multiply(Bytes& bytes, const MatrixKind& kind, int rows, const Kernels& kernels, Pool& pool, int threads) {
    const auto matrix = make_matrix(bytes, kind);
    const Activation activation = draw_activation(bytes);
    const std::vector<float> x = bytes.floats(affordable(1.0 * rows * matrix->inputs()));
    std::vector<float> out(affordable(1.0 * rows * matrix->outputs()));
    matrix->multiply(kernels, pool, threads, x.data(), rows, activation, out.data());
    return out;
}

SharedMask draw_mask(Bytes& bytes, const Matrix& matrix) {
    if (bytes.one_in(3)) return nullptr;
    const int outputs = bytes.mostly(matrix.outputs()), inputs = bytes.mostly(matrix.inputs()), most = bytes.between(0, 20);
    const std::size_t count = outputs > 0 && inputs > 0 ? affordable(1.0 * outputs * inputs) : 0;
    const auto kept = bytes.numbers<std::uint8_t>(count, 0, most);
    return std::make_shared<Mask>(outputs, inputs, kept.data());
}

// Rows of several tasks, more than fill a tile or hardly any.
std::vector<float> multiply_masked(Bytes& bytes, const MatrixKind& kind, const Kernels& kernels, Pool& pool, int threads) {
    const auto matrix = make_matrix(bytes, kind);
    std::vector<SharedMask> masks;
    std::vector<MaskedRows> parts;
    int rows = 0;
    for (int count = bytes.between(1, 4); count-- > 0;) {
        const int more = bytes.one_in(8) ? bytes.between(200, 300) : bytes.between(0, 14);
        masks.push_back(draw_mask(bytes, *matrix));
        add_rows(parts, rows, rows + more, masks.back().get());
        rows += more;
    }
    const Activation activation = draw_activation(bytes);
    const std::vector<float> x = bytes.floats(affordable(1.0 * rows * matrix->inputs()));
    std::vector<float> out(affordable(1.0 * rows * matrix->outputs()));
    multiply_masked(kernels, pool, threads, *matrix, parts, x.data(), activation, out.data());
    return out;
}

std::vector<float> run_matrix(Bytes bytes, const Kernels& kernels, Pool& pool, int threads) {
    const int outputs = bytes.size(), inputs = bytes.one_in(32) ? bytes.between(1, 300) : bytes.size();
    const MatrixKind kind = draw_kind(bytes, outputs, inputs, !bytes.one_in(4));
    if (bytes.one_in(4)) return multiply_masked(bytes, kind, kernels, pool, threads);
    return multiply(bytes, kind, bytes.mostly(bytes.between(0, 14)), kernels, pool, threads);
}

// Rows to look up, and the memory that they lie in.
struct DrawnTable {
    std::vector<float> floats;
    std::unique_ptr<Packed> packed;
    Table table;

    DrawnTable(Bytes& bytes, int rows, int columns) {
        table.rows = bytes.mostly(rows), table.columns = bytes.mostly(columns);
        if (bytes.one_in(2)) {
            floats = bytes.floats(affordable(1.0 * table.rows * table.columns));
            table.floats = floats.data();
        } else {
            packed = std::make_unique<Packed>(bytes, table.rows, table.columns, bytes.mostly(bytes.size()), draw_layout(bytes));
            table.packed = packed->rows;
        }
    }
};

FloatNorm draw_norm(Bytes& bytes, int width) {
    FloatNorm norm;
    norm.weight = bytes.floats(affordable(bytes.mostly(width)));
    norm.bias = bytes.floats(affordable(bytes.mostly(width)));
    norm.epsilon = bytes.one_in(16) ? bytes.floats(1)[0] : 1e-5f;
    norm.centred = bytes.one_in(2);
    return norm;
}

Block draw_block(Bytes& bytes, const Shape& shape, bool rounds) {
    const int width = shape.width(), heads = bytes.one_in(4) ? bytes.between(1, 3) : shape.heads, inner = width * heads;
    const int hidden = shape.hidden, ffn = bytes.size();
    Block block;
    block.qkv = draw_matrix(bytes, 3 * inner, hidden, rounds);
    block.output = draw_matrix(bytes, hidden, inner, rounds != bytes.one_in(32));
    block.up = draw_matrix(bytes, shape.gated ? 2 * ffn : ffn, hidden, rounds != bytes.one_in(32));
    block.down = draw_matrix(bytes, hidden, ffn, rounds != bytes.one_in(32));
    if (!shape.pre_norm || bytes.one_in(2)) block.attention_norm = draw_norm(bytes, hidden);
    if (!shape.pre_norm || bytes.one_in(2)) block.output_norm = draw_norm(bytes, hidden);
    block.window = bytes.mostly(bytes.one_in(3) ? bytes.between(1, 40) : 0);
    if (width % 2 == 0 && bytes.one_in(2)) {
        const std::size_t count = affordable(1.0 * bytes.mostly(shape.longest) * bytes.mostly(width / 2));
        block.rotation = std::make_shared<Rotation>(Rotation{bytes.floats(count), bytes.floats(count)});
    }
    return block;
}

// Masks of some blocks and a head; of an encoder of no blocks, none.
Task draw_task(Bytes& bytes, const std::vector<Block>& blocks, int hidden) {
    Task task = {bytes.mostly(hidden), {}, {}};
    const int usual = static_cast<int>(blocks.size()), count = blocks.empty() ? 0 : std::min(5, bytes.mostly(usual));
    for (int i = 0; i < count; i++) {
        const Block& block = blocks[std::min(i, usual - 1)];
        task.blocks.push_back({{draw_mask(bytes, *block.qkv), draw_mask(bytes, *block.output), draw_mask(bytes, *block.up),
                                draw_mask(bytes, *block.down)}});
    }
    for (int layers = bytes.between(0, 2); layers-- > 0;) {
        const int outputs = bytes.size();
        HeadLayer layer = {draw_matrix(bytes, outputs, task.head.outputs(task.hidden), bytes.one_in(8)), draw_activation(bytes), {}, nullptr};
        if (bytes.one_in(2)) layer.mask = draw_mask(bytes, *layer.matrix);
        if (bytes.one_in(3)) layer.norm = draw_norm(bytes, outputs);
        task.head.add(std::move(layer), task.hidden);
    }
    task.head.pooling = static_cast<Pooling>(bytes.between(0, 2));
    return task;
}

// Sequences of several tasks, in any order.
std::vector<float> run_mixed(Bytes& bytes, const Encoder& encoder, const Input& input, const std::vector<Block>& blocks,
                             const Kernels& kernels, Pool& pool, int threads) {
    std::vector<Task> tasks;
    for (int count = bytes.between(1, 3); count-- > 0;) tasks.push_back(draw_task(bytes, blocks, encoder.shape().hidden));
    std::vector<const Task*> chosen;
    check_starts(input.starts, input.sequences, encoder.shape().longest);
    double count = 0;
    for (int i = 0; i < input.sequences; i++) {
        const Task& task = tasks[bytes.between(0, static_cast<int>(tasks.size()) - 1)];
        chosen.push_back(&task);
        const int rows = task.head.pooling == Pooling::tokens ? input.starts[i + 1] - input.starts[i] : 1;
        count += 1.0 * rows * task.head.outputs(task.hidden);
    }
    std::vector<float> out(affordable(count));
    encoder.run(kernels, pool, threads, input, chosen.data(), out.data());
    return out;
}

std::vector<float> run_input(Bytes& bytes, const Encoder& encoder, const std::vector<Block>& blocks, const Kernels& kernels,
                             Pool& pool, int threads) {
    const Embeddings& embeddings = encoder.embeddings();
    const bool images = embeddings.images;
    const int longest = encoder.shape().longest, words = embeddings.words.rows;
    std::vector<std::int32_t> starts = {bytes.mostly(0)};
    for (int sequences = bytes.between(0, 3); sequences-- > 0;) {
        const int length = images ? longest : bytes.between(1, std::min(longest, 40));
        starts.push_back(bytes.mostly(static_cast<int>(affordable(1.0 * starts.back() + length))));
    }
    const std::size_t tokens = affordable(starts.back());
    const auto ids = bytes.numbers<std::int32_t>(images ? 0 : tokens, bytes.mostly(0), std::max(1, words) - 1);
    const auto types = bytes.numbers<std::int32_t>(images ? 0 : tokens, 0, std::max(1, embeddings.types.rows) - 1);
    Input input = {ids.data(), bytes.one_in(2) ? types.data() : nullptr, nullptr, starts.data(), static_cast<int>(starts.size()) - 1};
    std::vector<float> patches;
    if (images) {
        const double count = 1.0 * input.sequences * (longest - words);
        patches = bytes.floats(affordable(count * embeddings.projection->inputs()));
        input.patches = patches.data();
    }
    if (bytes.one_in(2)) return run_mixed(bytes, encoder, input, blocks, kernels, pool, threads);
    const double rows = encoder.pooling() == Pooling::tokens ? static_cast<double>(tokens) : input.sequences;
    std::vector<float> out(affordable(rows * encoder.outputs()));
    encoder.run(kernels, pool, threads, input, out.data());
    return out;
}

std::vector<float> run_encoder(Bytes bytes, const Kernels& kernels, Pool& pool, int threads) {
    const int usual_heads = bytes.between(1, 3), longest = bytes.size();
    Shape shape = {bytes.mostly(usual_heads * bytes.between(1, 18)), bytes.mostly(usual_heads), bytes.mostly(longest),
                   draw_activation(bytes), bytes.one_in(2), bytes.one_in(3)};
    const bool images = bytes.one_in(4), rounds = bytes.one_in(2);
    const int hidden = std::min(shape.hidden, 200), narrow = !images && bytes.one_in(4) ? bytes.size() : hidden;
    const int offset = bytes.mostly(bytes.one_in(4) ? bytes.between(1, 4) : 0);
    const DrawnTable words(bytes, images ? std::min(longest, bytes.between(1, 2)) : bytes.between(1, 40), narrow);
    const DrawnTable positions(bytes, bytes.one_in(3) ? 0 : longest + std::min(offset, 300), narrow);
    const DrawnTable types(bytes, bytes.one_in(2) ? 0 : bytes.between(1, 3), narrow);
    Embeddings embeddings = {words.table, positions.table, types.table, {}, nullptr, offset, images};
    if (bytes.one_in(2)) embeddings.norm = draw_norm(bytes, narrow);
    if (images || narrow != hidden) embeddings.projection = draw_matrix(bytes, hidden, images ? bytes.size() : narrow, bytes.one_in(64));

    Encoder encoder(shape, embeddings);
    if (bytes.one_in(4)) {
        const std::vector<float> bias = bytes.floats(affordable(shape.heads * (2.0 * shape.longest - 1)));
        encoder.set_position_bias(bias.data());
    }
    std::vector<Block> blocks;
    for (int count = bytes.mostly(bytes.between(1, 2)); count > 0 && count < 5; count--) {
        blocks.push_back(draw_block(bytes, shape, rounds));
        encoder.add_block(blocks.back());
    }
    if (shape.pre_norm && bytes.one_in(2)) encoder.set_final_norm(draw_norm(bytes, hidden));
    for (int layers = bytes.between(0, 2); layers-- > 0;) {
        const int outputs = bytes.size();
        HeadLayer layer = {draw_matrix(bytes, outputs, encoder.outputs(), bytes.one_in(2)), draw_activation(bytes), {}, nullptr};
        if (bytes.one_in(3)) layer.norm = draw_norm(bytes, outputs);
        encoder.add_head_layer(std::move(layer));
    }
    encoder.set_pooling(static_cast<Pooling>(bytes.between(0, 2)));

    std::vector<float> all = run_input(bytes, encoder, blocks, kernels, pool, threads);
    if (bytes.one_in(4)) {  // with the memory of the first
        const std::vector<float> more = run_input(bytes, encoder, blocks, kernels, pool, threads);
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

Block draw_decoder_block(Bytes& bytes, const Shape& shape, bool rounds) {
    const int width = shape.head_width, kept = bytes.between(1, 2), heads = bytes.mostly(kept * bytes.between(1, 2));
    const int hidden = shape.hidden, size = bytes.size();
    const int ffn = bytes.one_in(2) ? static_cast<int>(padded(size, kColumns)) : size;
    const int inner = static_cast<int>(affordable(1.0 * heads * width));
    Block block;
    block.qkv = draw_matrix(bytes, inner + 2 * static_cast<int>(affordable(1.0 * kept * width)), hidden, rounds);
    block.output = draw_matrix(bytes, hidden, inner, rounds != bytes.one_in(32));
    block.up = draw_matrix(bytes, 2 * ffn, hidden, rounds != bytes.one_in(32));
    block.down = draw_matrix(bytes, hidden, ffn, rounds != bytes.one_in(32));
    block.attention_norm = draw_norm(bytes, hidden);
    block.output_norm = draw_norm(bytes, hidden);
    const std::size_t count = affordable(1.0 * bytes.mostly(shape.longest) * bytes.mostly(width / 2));
    block.rotation = std::make_shared<Rotation>(Rotation{bytes.floats(count), bytes.floats(count)});
    return block;
}

// New tokens for some of the caches, of which some were cropped before.
std::vector<float> run_tokens(Bytes& bytes, const Decoder& decoder, std::vector<std::unique_ptr<Cache>>& caches, int words,
                              const Kernels& kernels, Pool& pool, int threads) {
    std::vector<std::int32_t> starts = {bytes.mostly(0)};
    std::vector<Cache*> chosen;
    for (const auto& cache : caches) {
        if (bytes.one_in(4)) cache->crop(bytes.mostly(bytes.between(0, std::max(0, cache->length()))));
        if (bytes.one_in(4)) continue;
        starts.push_back(bytes.mostly(static_cast<int>(affordable(1.0 * starts.back() + bytes.between(1, 20)))));
        chosen.push_back(bytes.one_in(64) ? caches[0].get() : cache.get());
    }
    const std::size_t tokens = affordable(starts.back());
    const auto ids = bytes.numbers<std::int32_t>(tokens, bytes.mostly(0), std::max(1, words) - 1);
    NewTokens input = {ids.data(), starts.data(), static_cast<int>(chosen.size()), chosen.data(), bytes.one_in(2)};
    std::vector<std::int32_t> neurons;
    for (std::size_t block = 0; block < decoder.blocks().size(); block++) neurons.push_back(bytes.mostly(bytes.size()));
    if (bytes.one_in(2)) input.neurons = neurons.data();
    std::shared_ptr<Matrix> head;
    if (bytes.one_in(4)) {
        const auto part = bytes.numbers<std::int32_t>(bytes.size(), bytes.mostly(0), std::max(1, decoder.vocabulary()) - 1);
        head = bytes.one_in(8) ? draw_matrix(bytes, bytes.size(), bytes.size(), bytes.one_in(2))
                               : decoder.head()->select(part.data(), static_cast<int>(part.size()));
    }
    input.head = head.get();
    const int answered = head == nullptr ? decoder.vocabulary() : head->outputs();
    std::vector<float> out(affordable(1.0 * input.answers() * answered));
    decoder.run(kernels, pool, threads, input, out.data());
    return out;
}

std::vector<float> run_decoder(Bytes bytes, const Kernels& kernels, Pool& pool, int threads) {
    Shape shape = {bytes.mostly(bytes.size()), bytes.mostly(bytes.between(1, 3)), bytes.mostly(bytes.between(1, 50)),
                   draw_activation(bytes), true, true, bytes.mostly(2 * bytes.between(1, 10))};
    const bool rounds = bytes.one_in(2);
    const DrawnTable words(bytes, bytes.between(1, 40), shape.hidden);
    Decoder decoder(shape, words.table, bytes.one_in(2) ? 1.0f : bytes.floats(1)[0]);
    for (int blocks = bytes.mostly(bytes.between(1, 2)); blocks > 0 && blocks < 5; blocks--) {
        Block block = draw_decoder_block(bytes, shape, rounds);
        FloatNorm norms[2];
        for (FloatNorm& norm : norms)
            if (bytes.one_in(3)) norm = draw_norm(bytes, shape.head_width);
        decoder.add_block(std::move(block), norms[0], norms[1]);
    }
    if (!bytes.one_in(8)) decoder.set_final_norm(draw_norm(bytes, shape.hidden));
    std::vector<std::unique_ptr<Cache>> caches;
    if (bytes.one_in(64)) caches.push_back(decoder.make_cache());
    decoder.set_head(draw_matrix(bytes, bytes.size(), bytes.mostly(shape.hidden), rounds != bytes.one_in(2)));
    for (int count = bytes.between(1, 3); count-- > 0;) caches.push_back(decoder.make_cache());
    std::vector<float> all;
    for (int calls = bytes.between(1, 4); calls-- > 0;) {
        const std::vector<float> more = run_tokens(bytes, decoder, caches, words.table.rows, kernels, pool, threads);
        all.insert(all.end(), more.begin(), more.end());
    }
    return all;
}

// Attention by itself, whose scratch an encoder shares with its matrices.
std::vector<float> run_attention(Bytes bytes, const Kernels& kernels, Pool&, int) {
    const int heads = bytes.between(1, 2), width = bytes.size(), begin = bytes.between(0, 2);
    const std::vector<std::int32_t> starts = {begin, begin + bytes.size()};
    const std::size_t count = static_cast<std::size_t>(starts[1]) * heads * width;
    const std::vector<float> qkv = bytes.floats(3 * count);
    std::vector<float> out(count);
    Attention attention = {qkv.data(), out.data(), starts.data(), heads, width, 0.5f};
    attention.rounded = bytes.one_in(2);
    attention.window = bytes.one_in(2) ? bytes.between(1, 40) : 0;
    attention.longest = starts[1] - begin + bytes.between(0, 2);
    const std::vector<float> bias = bytes.floats(heads * bias_row(attention.longest));
    if (bytes.one_in(2)) attention.bias = bias.data();
    std::vector<std::uint8_t> scratch(HeadScratch(nullptr, starts[1] - begin, width, attention.rounded).bytes);
    for (int head = 0; head < heads; head++) kernels.attend(attention, 0, head, scratch.data());
    return out;
}

// Norms, gates and rounded rows by themselves, for the same reason.
std::vector<float> run_rows(Bytes bytes, const Kernels& kernels, Pool&, int) {
    const int rows = bytes.between(0, 14), width = bytes.size();
    const std::size_t count = static_cast<std::size_t>(rows) * width;
    const std::vector<float> x = bytes.floats(count), residual = bytes.floats(count), both = bytes.floats(2 * count);
    const std::vector<float> weight = bytes.floats(width), bias = bytes.floats(width);
    std::vector<float> normed(count), gated(count), scales(rows);
    const int first = std::min(rows, bytes.between(0, 2));
    kernels.norm(x.data(), bytes.one_in(2) ? residual.data() : nullptr, width, {weight.data(), bias.data(), 1e-5f}, normed.data(),
                 first, rows);
    kernels.gate(both.data(), width, draw_activation(bytes), gated.data(), first, rows);
    std::vector<std::int8_t> values(rows * padded(width, kInputs));
    std::vector<std::int32_t> sums(rows);
    kernels.quantize(x.data(), rows, width, {values.data(), scales.data(), sums.data()}, 0, parts_of(rows, kRows));
    normed.insert(normed.end(), gated.begin(), gated.end());
    normed.insert(normed.end(), scales.begin(), scales.end());
    normed.insert(normed.end(), sums.begin(), sums.end());
    normed.insert(normed.end(), values.begin(), values.end());
    return normed;
}

struct Outcome {
    std::vector<float> numbers;
    std::string error;
};

using Case = std::function<std::vector<float>(Bytes, const Kernels&, Pool&, int threads)>;

Outcome outcome_of(const Case& run, const Bytes& bytes, const Kernels& kernels, int threads) {
    static Pool pool(3);
    try {
        return {run(bytes, kernels, pool, threads), ""};
    } catch (const InputError& error) {
        return {{}, error.what()};
    }
}

// Processors give NaN different bits.
bool same(float one, float other) {
    return std::isnan(one) ? std::isnan(other) : std::memcmp(&one, &other, sizeof one) == 0;
}

// Whether a case led to numbers, not to an error; the same on every set.
bool agree(const Case& run, const Bytes& bytes, int threads) {
    const Kernels* const portable = find_kernels("portable");
    const Outcome expected = outcome_of(run, bytes, *portable, 1);
    for (const InstructionSet& set : instruction_sets()) {
        if (!set.is_here || (set.kernels == portable && threads == 1)) continue;
        const Outcome outcome = outcome_of(run, bytes, *set.kernels, threads);
        if (outcome.error == expected.error && outcome.numbers.size() == expected.numbers.size() &&
            std::equal(outcome.numbers.begin(), outcome.numbers.end(), expected.numbers.begin(), same))
            continue;
        std::fprintf(stderr, "%s with %d threads differs from the portable one %s\n", set.kernels->name, threads, outcome.error.c_str());
        std::abort();
    }
    return expected.error.empty();
}

bool fuzz(const std::uint8_t* data, std::size_t size) {
    static const Case cases[] = {run_matrix, run_encoder, run_decoder, run_attention, run_rows};
    Bytes bytes(data, size);
    const Case& run = cases[bytes.between(0, static_cast<int>(std::size(cases)) - 1)];
    const int threads = bytes.one_in(8) ? bytes.mostly(bytes.between(2, 4)) : 1;
    return agree(run, bytes, threads);
}

}  // namespace

#ifdef FUZZ_BY_COVERAGE

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz(data, size);
    return 0;
}

#else

static std::uint64_t current;  // the seed of one string

extern "C" const char* __asan_default_options() { return "abort_on_error=1"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

// Products of one number of inputs: every layout and floats, whole and in groups, of rows that are read packed and unpacked.
static std::uint64_t sweep(int inputs) {
    std::uint64_t products = 0;
    for (int layout = -1; layout < static_cast<int>(std::size(kLayouts)); layout++)
        for (const int group : {inputs, 16})
            for (const int rows : {1, 13}) {
                const MatrixKind kind = {kColumns + 1, inputs, layout >= 0, kLayouts[std::max(0, layout)], group};
                const Case product = [&](Bytes bytes, const Kernels& kernels, Pool& pool, int threads) {
                    return multiply(bytes, kind, rows, kernels, pool, threads);
                };
                products += agree(product, Bytes(nullptr, 0), 1);
            }
    return products;
}

int main(int count, char** arguments) {
    if (count != 4) {
        std::fprintf(stderr, "usage: fuzz SEED COUNT INPUTS\n");
        return 2;
    }
    const auto number = [&](int which) { return static_cast<unsigned long long>(std::strtoull(arguments[which], nullptr, 10)); };
    const unsigned long long seed = number(1), strings = number(2), most = number(3);
    unsigned long long answered = 0, products = 0;
    for (int inputs = 1; inputs <= static_cast<int>(most); inputs++) products += sweep(inputs);
    std::printf("%llu products of 1 to %llu inputs\n", products, most);
    std::signal(SIGABRT, [](int) { std::fprintf(stderr, "again: fuzz %llu 1 0\n", static_cast<unsigned long long>(current)); });
    for (current = seed; current < seed + strings; current++) {
        std::mt19937_64 draw(current);
        std::vector<std::uint8_t> data(draw() % 512);
        for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(draw());
        answered += fuzz(data.data(), data.size());
    }
    std::printf("%llu strings, %llu answered\n", strings, answered);
    return 0;
}

#endif
