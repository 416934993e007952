#include "encoder.h"

#include <algorithm>
#include <cmath>

namespace slimformer {

namespace {

void grow(Memory<float>& floats, std::size_t size) {
    if (floats.size() < size) floats.resize(size);
}

// Turns the halves of one head of a query or key against each other, by the angles of its position.
void turn(float* x, const float* cosines, const float* sines, int half) {
    for (int i = 0; i < half; i++) {
        const float one = x[i], other = x[i + half];
        x[i] = one * cosines[i] - other * sines[i];
        x[i + half] = other * cosines[i] + one * sines[i];
    }
}

}  // namespace

struct Encoder::Workspace {
    Memory<float> hidden, normed, wide, gated, context, narrow, pooled[2];
    RoundedRows rows, wide_rows;
    std::vector<Memory<std::uint8_t>> scratch;  // of each thread
    std::vector<std::int32_t> positions;        // of each token

    void hold(const Encoder& encoder, const Input& input, int threads) {
        const Shape& shape = encoder.shape_;
        const Embeddings& embeddings = encoder.embeddings_;
        const std::size_t count = input.tokens(), size = shape.hidden;
        std::size_t widest = size, inner = size, ffn = 0, bytes = 0;
        for (const Block& block : encoder.blocks_) {
            widest = std::max<std::size_t>(widest, std::max(block.qkv->outputs(), block.up->outputs()));
            inner = std::max<std::size_t>(inner, block.output->inputs());
            ffn = std::max<std::size_t>(ffn, block.down->inputs());
            for (const Matrix* matrix : {block.qkv.get(), block.output.get(), block.up.get(), block.down.get()})
                bytes = std::max(bytes, matrix->scratch());
        }
        grow(hidden, count * size);
        grow(context, count * inner);
        grow(wide, count * widest);
        if (shape.pre_norm || encoder.final_norm_) grow(normed, count * size);
        if (shape.gated) grow(gated, count * ffn);
        if (embeddings.projection != nullptr && !embeddings.images) grow(narrow, count * embeddings.words.columns);
        rows.hold(count, inner);
        wide_rows.hold(count, ffn);
        positions.resize(count);
        int longest = 0;
        for (int i = 0; i < input.sequences; i++) {
            longest = std::max(longest, input.starts[i + 1] - input.starts[i]);
            // Where positions come after that of padding, a token of padding has it, and is not counted.
            const int offset = embeddings.position_offset;
            for (int token = input.starts[i], position = offset; token < input.starts[i + 1]; token++) {
                const bool padding = offset > 0 && input.ids != nullptr && input.ids[token] == offset - 1;
                positions[token] = padding ? offset - 1 : position++;
            }
        }
        for (const bool rounded : {false, true})
            bytes = std::max(bytes, HeadScratch(nullptr, longest, shape.width(), rounded).bytes);
        if (scratch.size() < static_cast<std::size_t>(threads)) scratch.resize(threads);
        for (auto& each : scratch)
            if (each.size() < bytes) each.resize(bytes);
    }
};

Encoder::Encoder(Shape shape, Embeddings embeddings) : shape_(shape), embeddings_(std::move(embeddings)) {
    const Embeddings& from = embeddings_;
    if (shape.hidden < 1 || shape.heads < 1 || shape.hidden % shape.heads != 0 || shape.longest < 1 ||
        shape.longest >= kMost)
        throw InputError("a shape of " + std::to_string(shape.hidden) + " with " + std::to_string(shape.heads) +
                         " heads and sequences of " + std::to_string(shape.longest));
    for (const Table* table : {&from.words, &from.positions, &from.types}) table->check();
    if (from.position_offset < 0 || from.position_offset >= kMost ||
        (from.positions.rows > 0 && shape.longest > from.positions.rows - from.position_offset))
        throw InputError("fewer positions than tokens of a sequence");
    if (from.images && from.words.rows > shape.longest)
        throw InputError("more tokens before the patches than there are in a sequence");
    const int width = from.words.columns, made = from.images ? shape.hidden : width;
    const auto as_wide = [&](const Table& table) { return table.rows == 0 || table.columns == made; };
    const SharedMatrix& projection = from.projection;
    from.norm.check(made);
    if (!as_wide(from.positions) || !as_wide(from.types) ||
        (from.images ? width != shape.hidden || projection == nullptr : projection == nullptr && width != shape.hidden) ||
        (projection != nullptr && (projection->rounds() || projection->outputs() != shape.hidden ||
                                   (!from.images && projection->inputs() != width))))
        throw InputError("embeddings of another width than the blocks");
}

Encoder::~Encoder() {
    for (auto& each : kept_) delete each.load();
}

void Encoder::add_block(Block block) {
    const auto fits = [](const SharedMatrix& matrix, int outputs, int inputs) {
        if (matrix == nullptr || matrix->outputs() != outputs || matrix->inputs() != inputs)
            throw InputError("a matrix of a block is not " + std::to_string(outputs) + " x " + std::to_string(inputs));
    };
    const int hidden = shape_.hidden, width = shape_.width(), ffn = block.down == nullptr ? 0 : block.down->inputs();
    const int inner = block.output == nullptr ? 0 : block.output->inputs();
    if (inner % width != 0 || (!position_bias_.empty() && inner != hidden))
        throw InputError("attention of a width of " + std::to_string(inner) + " with heads of " + std::to_string(width));
    fits(block.qkv, 3 * inner, hidden);
    fits(block.output, hidden, inner);
    fits(block.up, shape_.gated ? 2 * ffn : ffn, hidden);
    fits(block.down, hidden, ffn);
    const std::size_t half = width / 2;
    if (block.rotation != nullptr &&
        (width % 2 != 0 || block.rotation->cosines.size() != shape_.longest * half ||
         block.rotation->sines.size() != shape_.longest * half))
        throw InputError("angles of another number of positions or another width of heads");
    if (block.window < 0 || block.window > 1 << 24) throw InputError("a window of " + std::to_string(block.window));
    block.attention_norm.check(hidden);
    block.output_norm.check(hidden);
    if (!shape_.pre_norm && (!block.attention_norm || !block.output_norm))
        throw InputError("a block without norms after its sub-layers");
    blocks_.push_back(std::move(block));
}

void Encoder::add_head_layer(HeadLayer layer) {
    if (layer.matrix == nullptr || layer.matrix->inputs() != outputs())
        throw InputError("a layer of the head reads another width than it is given");
    layer.norm.check(layer.matrix->outputs());
    head_.push_back(std::move(layer));
}

void Encoder::set_final_norm(FloatNorm norm) {
    norm.check(shape_.hidden);
    final_norm_ = std::move(norm);
}

void Encoder::set_position_bias(const float* bias) {
    if (!blocks_.empty()) throw InputError("biases for distances after the blocks that they are checked with");
    const std::size_t distances = 2 * shape_.longest - 1, row = bias_row(shape_.longest);
    position_bias_.assign(shape_.heads * row, 0.0f);
    for (int head = 0; head < shape_.heads; head++)
        std::copy_n(bias + head * distances, distances, position_bias_.data() + head * row);
}

void Encoder::check(const Input& input) const {
    if (input.starts[0] != 0) throw InputError("a first sequence that does not begin at 0");
    for (int i = 0; i < input.sequences; i++) {
        const std::int64_t length = std::int64_t{input.starts[i + 1]} - input.starts[i];
        if (length < 1 || length > shape_.longest || (embeddings_.images && length != shape_.longest))
            throw InputError("a sequence of " + std::to_string(length) + " tokens; give " +
                             (embeddings_.images ? "" : "1 to ") + std::to_string(shape_.longest));
    }
    if (input.tokens() >= kMost) throw InputError("too many tokens at once");
    for (const Block& block : blocks_)  // threads share the heads of all sequences, which they count
        if (input.sequences > kMost * 64 / (block.output->inputs() / shape_.width()))
            throw InputError("too many sequences at once");
    if (embeddings_.images) return;
    const int words = embeddings_.words.rows, types = embeddings_.types.rows;
    for (int i = 0; i < input.tokens(); i++) {
        if (input.ids[i] < 0 || input.ids[i] >= words)
            throw InputError("token " + std::to_string(input.ids[i]) + " of a vocabulary of " + std::to_string(words));
        if (input.types != nullptr && (input.types[i] < 0 || input.types[i] >= types))
            throw InputError("a token of type " + std::to_string(input.types[i]) + " of " + std::to_string(types));
    }
}

std::unique_ptr<Encoder::Workspace> Encoder::take_workspace() const {
    for (auto& each : kept_)
        if (Workspace* work = each.exchange(nullptr)) return std::unique_ptr<Workspace>(work);
    return std::make_unique<Workspace>();
}

void Encoder::keep_workspace(std::unique_ptr<Workspace> work) const {
    if (work->wide.size() > kMostKept) return;
    for (auto& each : kept_) {
        Workspace* none = nullptr;
        if (each.compare_exchange_strong(none, work.get())) {
            work.release();
            return;
        }
    }
}

// One thread of a forward; every thread goes through the same stages.
struct Encoder::Forward {
    const Encoder& encoder;
    const Kernels& kernels;
    Team& team;
    const Input& input;
    Workspace& work;
    std::uint8_t* const scratch;

    const Shape& shape = encoder.shape_;
    const int tokens = input.tokens(), hidden = shape.hidden, tiles = parts_of(tokens, kRows);
    float *const x = work.hidden.data(), *const wide = work.wide.data(), *const context = work.context.data();
    const QuantizedRows rows = work.rows.view(), wide_rows = work.wide_rows.view();

    int first_row(int tile) const { return tile * kRows; }
    int last_row(int tile) const { return std::min(tokens, (tile + 1) * kRows); }

    // Calls `take(token, position)` for the tokens of a tile.
    template <class Take>
    void each_token(int tile, const Take& take) const {
        const std::int32_t* starts = input.starts;
        int sequence = static_cast<int>(std::upper_bound(starts, starts + input.sequences, first_row(tile)) - starts) - 1;
        for (int token = first_row(tile); token < last_row(tile); token++) {
            while (token >= starts[sequence + 1]) sequence++;
            take(token, token - starts[sequence]);
        }
    }

    void embed() const {
        const Embeddings& from = encoder.embeddings_;
        const bool narrow = from.projection != nullptr && !from.images;
        const int before = from.images ? from.words.rows : 0, patches = shape.longest - before;
        const int width = from.images ? hidden : from.words.columns;
        float* const made = narrow ? work.narrow.data() : x;
        if (from.images)
            from.projection->product(kernels, team, input.patches, rows, input.sequences * patches, Activation::none, wide,
                                     scratch);
        team.share(tiles, [&](int tile) {
            each_token(tile, [&](int token, int position) {
                float* row = made + static_cast<std::size_t>(token) * width;
                std::fill(row, row + width, 0.0f);
                if (!from.images) {
                    from.words.add_row(input.ids[token], row);
                    if (from.types.rows > 0) from.types.add_row(input.types == nullptr ? 0 : input.types[token], row);
                } else if (position < before) {
                    from.words.add_row(position, row);
                } else {
                    const std::size_t patch = static_cast<std::size_t>(token / shape.longest) * patches + position - before;
                    std::copy_n(wide + patch * hidden, hidden, row);
                }
                if (from.positions.rows > 0) from.positions.add_row(work.positions[token], row);
            });
            if (from.norm)
                kernels.norm(made, nullptr, width, from.norm.view(), made, first_row(tile), last_row(tile));
        });
        if (narrow) from.projection->product(kernels, team, made, rows, tokens, Activation::none, x, scratch);
    }

    // Adds what a sub-layer computed to what it read, and readies what the next one reads: all of it once normalised, or
    // with a norm of its own (`before`) where norms stand before the sub-layers. Returns where it lies.
    const float* go_on(const float* computed, const FloatNorm* after, const FloatNorm* before, const Matrix* next) const {
        const bool normed = before != nullptr && *before;
        float* const to = normed ? work.normed.data() : x;
        team.share(tiles, [&](int tile) {
            const int first = first_row(tile), last = last_row(tile);
            if (after != nullptr) kernels.norm(computed, x, hidden, after->view(), x, first, last);
            if (after == nullptr && computed != nullptr)
                for (std::size_t i = static_cast<std::size_t>(first) * hidden; i < static_cast<std::size_t>(last) * hidden; i++)
                    x[i] += computed[i];
            if (normed) kernels.norm(x, nullptr, hidden, before->view(), to, first, last);
            if (next != nullptr && next->rounds()) kernels.quantize(to, tokens, hidden, rows, tile, tile + 1);
        });
        return to;
    }

    void round(const Matrix& next, const float* from, int width, const QuantizedRows& to) const {
        if (next.rounds())
            team.share(tiles, [&](int tile) { kernels.quantize(from, tokens, width, to, tile, tile + 1); });
    }

    void attend(const Block& block) const {
        const int width = shape.width(), half = width / 2, inner = block.output->inputs(), heads = inner / width;
        if (block.rotation != nullptr)
            team.share(tiles, [&](int tile) {
                each_token(tile, [&](int token, int position) {
                    const float* cosines = block.rotation->cosines.data() + static_cast<std::size_t>(position) * half;
                    const float* sines = block.rotation->sines.data() + static_cast<std::size_t>(position) * half;
                    for (int head = 0; head < 2 * heads; head++)  // those of the queries, then those of the keys
                        turn(wide + static_cast<std::size_t>(token) * 3 * inner + head * width, cosines, sines, half);
                });
            });
        const float* bias = encoder.position_bias_.empty() ? nullptr : encoder.position_bias_.data();
        const Attention attention = {wide,
                                     context,
                                     input.starts,
                                     heads,
                                     width,
                                     1.0f / std::sqrt(static_cast<float>(width)),
                                     block.qkv->rounds(),
                                     block.window,
                                     bias,
                                     shape.longest};
        team.share(input.sequences * heads,
                   [&](int part) { kernels.attend(attention, part / heads, part % heads, scratch); });
    }

    void run() const {
        embed();
        const bool pre = shape.pre_norm;
        const std::vector<Block>& blocks = encoder.blocks_;
        const float* in = go_on(nullptr, nullptr, pre ? &blocks[0].attention_norm : nullptr, blocks[0].qkv.get());
        for (std::size_t i = 0; i < blocks.size(); i++) {
            const Block& block = blocks[i];
            const Block* const next = i + 1 < blocks.size() ? &blocks[i + 1] : nullptr;
            block.qkv->product(kernels, team, in, rows, tokens, Activation::none, wide, scratch);
            attend(block);
            round(*block.output, context, block.output->inputs(), rows);
            // What is read in floats cannot be overwritten while it is.
            float* const attended = block.output->rounds() ? context : wide;
            block.output->product(kernels, team, context, rows, tokens, Activation::none, attended, scratch);
            in = go_on(attended, pre ? nullptr : &block.attention_norm, pre ? &block.output_norm : nullptr, block.up.get());

            const int ffn = block.down->inputs();
            const Activation activation = shape.gated ? Activation::none : shape.activation;
            block.up->product(kernels, team, in, rows, tokens, activation, wide, scratch);
            float* const between = shape.gated ? work.gated.data() : wide;
            if (shape.gated)
                team.share(tiles, [&](int tile) {
                    kernels.gate(wide, ffn, shape.activation, between, first_row(tile), last_row(tile));
                });
            round(*block.down, between, ffn, wide_rows);
            block.down->product(kernels, team, between, wide_rows, tokens, Activation::none, context, scratch);
            in = go_on(context, pre ? nullptr : &block.output_norm,
                       next == nullptr ? &encoder.final_norm_ : pre ? &next->attention_norm : nullptr,
                       next == nullptr ? nullptr : next->qkv.get());
        }
    }
};

void Encoder::run(const Kernels& kernels, Pool& pool, int threads, const Input& input, float* out) const {
    if (input.sequences == 0) return;
    if (blocks_.empty()) throw InputError("an encoder without blocks");
    check(input);
    const StandardFloats floats;
    std::unique_ptr<Workspace> work = take_workspace();
    work->hold(*this, input, std::max(1, std::min(threads, pool.threads())));
    pool.run(threads, [&](Team& team, int thread) {
        Forward{*this, kernels, team, input, *work, work->scratch[thread].data()}.run();
    });
    answer(kernels, input, *work, out);
    keep_workspace(std::move(work));
}

void Encoder::answer(const Kernels& kernels, const Input& input, Workspace& work, float* out) const {
    const int hidden = shape_.hidden;
    const float* x = final_norm_ ? work.normed.data() : work.hidden.data();
    const int count = pooling_ == Pooling::tokens ? input.tokens() : input.sequences;
    Memory<float>* pooled = work.pooled;
    grow(pooled[0], static_cast<std::size_t>(count) * hidden);
    for (int i = 0; i < count; i++) {
        float* to = pooled[0].data() + static_cast<std::size_t>(i) * hidden;
        const int first = pooling_ == Pooling::tokens ? i : input.starts[i];
        std::copy_n(x + static_cast<std::size_t>(first) * hidden, hidden, to);
        if (pooling_ != Pooling::mean) continue;
        for (int token = first + 1; token < input.starts[i + 1]; token++)
            for (int j = 0; j < hidden; j++) to[j] += x[static_cast<std::size_t>(token) * hidden + j];
        const float length = static_cast<float>(input.starts[i + 1] - first);
        for (int j = 0; j < hidden; j++) to[j] /= length;
    }
    Team alone(1);
    int here = 0;
    for (const HeadLayer& layer : head_) {
        const Matrix& matrix = *layer.matrix;
        grow(pooled[1 - here], static_cast<std::size_t>(count) * matrix.outputs());
        const float* from = pooled[here].data();
        float* to = pooled[1 - here].data();
        RoundedRows rounded;
        if (matrix.rounds()) {
            rounded.hold(count, matrix.inputs());
            kernels.quantize(from, count, matrix.inputs(), rounded.view(), 0, parts_of(count, kRows));
        }
        Memory<std::uint8_t> scratch(matrix.scratch());
        matrix.product(kernels, alone, from, rounded.view(), count, layer.activation, to, scratch.data());
        if (layer.norm) kernels.norm(to, nullptr, matrix.outputs(), layer.norm.view(), to, 0, count);
        here = 1 - here;
    }
    std::copy_n(pooled[here].data(), static_cast<std::size_t>(count) * outputs(), out);
}

}  // namespace slimformer
