#include "encoder.h"

#include <algorithm>
#include <cmath>

namespace slimformer {

void Head::add(HeadLayer layer, int hidden) {
    if (layer.matrix == nullptr || layer.matrix->inputs() != outputs(hidden))
        throw InputError("a layer of the head reads another width than it is given");
    layer.norm.check(layer.matrix->outputs());
    if (layer.mask != nullptr) layer.mask->check(*layer.matrix);
    layers.push_back(std::move(layer));
}

struct Encoder::Space : Workspace {
    Memory<float> narrow, pooled[2];
    RoundedRows pooled_rows;
    std::vector<std::int32_t> positions;  // of each token
    Mixture mixture;
    std::vector<int> masks;  // of each matrix
    std::vector<MaskedRows> masked;  // of a layer of a head: all of its rows

    void hold(const Encoder& encoder, const Input& input, int threads) {
        const Embeddings& embeddings = encoder.embeddings_;
        const std::size_t count = input.tokens();
        if (embeddings.projection != nullptr && !embeddings.images) grow(narrow, count * embeddings.words.columns);
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
        std::size_t bytes = 0;
        for (const bool rounded : {false, true})
            bytes = std::max(bytes, HeadScratch(nullptr, longest, encoder.shape().width(), rounded).bytes);
        Workspace::hold(encoder.stack_, count, threads, bytes);
    }

    // What a head needs for all sequences, however many of them are asked for at once. No thread needs it meanwhile.
    void hold_head(const Head& head, const Input& input, int width) {
        const std::size_t count = head.pooling == Pooling::tokens ? input.tokens() : input.sequences;
        grow(pooled[0], count * width);
        int here = 0;
        for (const HeadLayer& layer : head.layers) {
            const Matrix& matrix = *layer.matrix;
            grow(pooled[here = 1 - here], count * matrix.outputs());
            if (layer.mask != nullptr) pass.hold(matrix, parts_of(static_cast<int>(count), kLanes));
            if (matrix.rounds()) pooled_rows.hold(count, matrix.inputs());
            if (scratch[0].size() < matrix.scratch()) scratch[0].resize(matrix.scratch());
        }
    }

    // Room for as many parts as sequences and passes can make.
    void hold_parts(const Input& input, std::size_t matrices) {
        const std::size_t tiles = parts_of(input.tokens(), kLanes) + input.sequences;
        mixture.matrices.resize(matrices);
        for (auto& parts : mixture.matrices) parts.clear(), parts.reserve(input.sequences + tiles / kTilesOfPass + 1);
        masks.assign(matrices, 0);
    }

    std::size_t bytes() const {
        std::size_t sum = Workspace::bytes() + pooled_rows.bytes() + bytes_of(positions);
        for (const Memory<float>* each : {&narrow, &pooled[0], &pooled[1]}) sum += bytes_of(*each);
        for (const auto& parts : mixture.matrices) sum += bytes_of(parts);
        return sum;
    }
};

Encoder::Encoder(Shape shape, Embeddings embeddings) : stack_{shape, {}, {}}, embeddings_(std::move(embeddings)) {
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

Encoder::~Encoder() = default;

void Encoder::add_block(Block block) {
    const int inner = block.output == nullptr ? 0 : block.output->inputs();
    if (!position_bias_.empty() && inner != shape().hidden)
        throw InputError("attention of a width of " + std::to_string(inner) + " with heads of " + std::to_string(shape().width()));
    stack_.add(std::move(block), 3 * inner);
}

void Encoder::set_position_bias(const float* bias) {
    if (!stack_.blocks.empty()) throw InputError("biases for distances after the blocks that they are checked with");
    const std::size_t distances = 2 * shape().longest - 1, row = bias_row(shape().longest);
    position_bias_.assign(shape().heads * row, 0.0f);
    for (int head = 0; head < shape().heads; head++)
        std::copy_n(bias + head * distances, distances, position_bias_.data() + head * row);
}

std::size_t Encoder::bytes() const {
    const Embeddings& from = embeddings_;
    std::size_t sum = from.words.bytes() + from.positions.bytes() + from.types.bytes();
    if (from.projection != nullptr) sum += from.projection->bytes();
    for (const Block& block : stack_.blocks)
        for (const Part part : {Part::qkv, Part::output, Part::up, Part::down}) sum += block.matrix(part).bytes();
    for (const HeadLayer& layer : head_.layers) sum += layer.matrix->bytes();
    return sum;
}

void Encoder::check(const Input& input) const {
    check_starts(input.starts, input.sequences, shape().longest);
    if (embeddings_.images && input.tokens() != input.sequences * shape().longest)
        throw InputError("an image of other than " + std::to_string(shape().longest) + " tokens");
    for (const Block& block : stack_.blocks)  // threads share the heads of all sequences, which they count
        if (input.sequences > kMost * 64 / (block.output->inputs() / shape().width()))
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

void Encoder::embed(const Forward& forward, const Input& input, Space& space) const {
    const Embeddings& from = embeddings_;
    const Kernels& kernels = forward.kernels;
    Team& team = forward.team;
    const Shape& shape = stack_.shape;
    const int hidden = shape.hidden;
    const bool narrow = from.projection != nullptr && !from.images;
    const int before = from.images ? from.words.rows : 0, patches = shape.longest - before;
    const int width = from.images ? hidden : from.words.columns;
    float* const made = narrow ? space.narrow.data() : forward.x;
    if (from.images)
        from.projection->product(kernels, team, input.patches, forward.rows, input.sequences * patches, Activation::none,
                                 forward.wide, forward.scratch);
    team.share(forward.tiles, [&](int tile) {
        forward.each_token(tile, [&](int token, int, int position) {
            float* row = made + static_cast<std::size_t>(token) * width;
            std::fill(row, row + width, 0.0f);
            if (!from.images) {
                from.words.add_row(input.ids[token], row);
                if (from.types.rows > 0) from.types.add_row(input.types == nullptr ? 0 : input.types[token], row);
            } else if (position < before) {
                from.words.add_row(position, row);
            } else {
                const std::size_t patch = static_cast<std::size_t>(token / shape.longest) * patches + position - before;
                std::copy_n(forward.wide + patch * hidden, hidden, row);
            }
            if (from.positions.rows > 0) from.positions.add_row(space.positions[token], row);
        });
        if (from.norm)
            kernels.norm(made, nullptr, width, from.norm.view(), made, forward.first_row(tile), forward.last_row(tile));
    });
    if (narrow) from.projection->product(kernels, team, made, forward.rows, forward.tokens, Activation::none, forward.x, forward.scratch);
}

void Encoder::attend(const Forward& forward, const Block& block) const {
    const int width = shape().width(), inner = block.output->inputs(), heads = inner / width;
    if (block.rotation != nullptr)
        forward.team.share(forward.tiles, [&](int tile) {
            forward.each_token(tile, [&](int token, int, int position) {  // heads of the queries, then those of the keys
                turn_heads(forward.wide + static_cast<std::size_t>(token) * 3 * inner, 2 * heads, width, *block.rotation, position);
            });
        });
    const float* bias = position_bias_.empty() ? nullptr : position_bias_.data();
    const Attention attention = {forward.wide,
                                 forward.context,
                                 forward.starts,
                                 heads,
                                 width,
                                 1.0f / std::sqrt(static_cast<float>(width)),
                                 block.qkv->rounds(),
                                 block.window,
                                 bias,
                                 shape().longest};
    forward.team.share(forward.sequences * heads, [&](int part) {
        forward.kernels.attend(attention, part / heads, part % heads, forward.scratch);
    });
}

void Encoder::check(const Task& task) const {
    if (task.hidden != shape().hidden || task.blocks.size() != stack_.blocks.size())
        throw InputError("a task of " + std::to_string(task.blocks.size()) + " blocks of " + std::to_string(task.hidden) +
                         " on an encoder of " + std::to_string(stack_.blocks.size()) + " of " + std::to_string(shape().hidden));
    for (std::size_t i = 0; i < task.blocks.size(); i++)
        for (int part = 0; part < kBlockMatrices; part++)
            if (const Mask* mask = task.blocks[i].of[part].get()) mask->check(stack_.blocks[i].matrix(static_cast<Part>(part)));
}

void Encoder::mix(const Input& input, const Task* const* tasks, Space& space) const {
    space.hold_parts(input, stack_.blocks.size() * kBlockMatrices);
    std::vector<std::vector<MaskedRows>>& matrices = space.mixture.matrices;
    for (int first = 0, last; first < input.sequences; first = last) {
        for (last = first + 1; last < input.sequences && tasks[last] == tasks[first];) last++;
        check(*tasks[first]);
        for (std::size_t i = 0; i < matrices.size(); i++) {
            const Mask* const mask = tasks[first]->blocks[i / kBlockMatrices].of[i % kBlockMatrices].get();
            add_rows(matrices[i], input.starts[first], input.starts[last], mask);
            space.masks[i] += mask != nullptr;
        }
    }
    for (std::size_t i = 0; i < matrices.size(); i++) {
        if (space.masks[i] > 0)
            space.pass.hold(stack_.blocks[i / kBlockMatrices].matrix(static_cast<Part>(i % kBlockMatrices)), kTilesOfPass);
        else
            matrices[i].clear();
    }
}

void Encoder::forward(const Kernels& kernels, Pool& pool, int threads, const Input& input, Space& space,
                      const Mixture* mixture) const {
    space.hold(*this, input, std::max(1, std::min(threads, pool.threads())));
    pool.run(threads, [&](Team& team, int thread) {
        const Forward forward = {stack_,       kernels,         team, space, input.starts, input.sequences,
                                 space.scratch[thread].data(), nullptr, mixture};
        embed(forward, input, space);
        forward.run([&](const Block& block, std::size_t) { attend(forward, block); });
    });
}

void Encoder::run(const Kernels& kernels, Pool& pool, int threads, const Input& input, float* out) const {
    if (input.sequences == 0) return;
    if (stack_.blocks.empty()) throw InputError("an encoder without blocks");
    check(input);
    const StandardFloats floats;
    std::unique_ptr<Space> space = kept_.take();
    forward(kernels, pool, threads, input, *space, nullptr);
    space->hold_head(head_, input, shape().hidden);
    answer(kernels, input, *space, head_, 0, input.sequences, out);
    kept_.keep(std::move(space));
}

void Encoder::run(const Kernels& kernels, Pool& pool, int threads, const Input& input, const Task* const* tasks, float* out) const {
    if (input.sequences == 0) return;
    if (stack_.blocks.empty()) throw InputError("an encoder without blocks");
    check(input);
    const StandardFloats floats;
    std::unique_ptr<Space> space = kept_.take();
    mix(input, tasks, *space);
    forward(kernels, pool, threads, input, *space, &space->mixture);
    for (int first = 0, last; first < input.sequences; first = last) {
        for (last = first + 1; last < input.sequences && tasks[last] == tasks[first];) last++;
        space->hold_head(tasks[first]->head, input, shape().hidden);
        out += answer(kernels, input, *space, tasks[first]->head, first, last, out);
    }
    kept_.keep(std::move(space));
}

std::size_t Encoder::answer(const Kernels& kernels, const Input& input, Space& space, const Head& head, int first_sequence,
                            int last_sequence, float* out) const {
    const int hidden = shape().hidden, begin = input.starts[first_sequence];
    const float* x = stack_.final_norm ? space.normed.data() : space.hidden.data();
    const bool tokens = head.pooling == Pooling::tokens;
    const int count = tokens ? input.starts[last_sequence] - begin : last_sequence - first_sequence;
    Memory<float>* pooled = space.pooled;
    for (int i = 0; i < count; i++) {
        float* to = pooled[0].data() + static_cast<std::size_t>(i) * hidden;
        const int first = tokens ? begin + i : input.starts[first_sequence + i];
        std::copy_n(x + static_cast<std::size_t>(first) * hidden, hidden, to);
        if (head.pooling != Pooling::mean) continue;
        const int end = input.starts[first_sequence + i + 1];
        for (int token = first + 1; token < end; token++)
            for (int j = 0; j < hidden; j++) to[j] += x[static_cast<std::size_t>(token) * hidden + j];
        const float length = static_cast<float>(end - first);
        for (int j = 0; j < hidden; j++) to[j] /= length;
    }
    Team alone(1);
    int here = 0;
    for (const HeadLayer& layer : head.layers) {
        const Matrix& matrix = *layer.matrix;
        const float* from = pooled[here].data();
        float* to = pooled[1 - here].data();
        std::uint8_t* const scratch = space.scratch[0].data();
        const QuantizedRows rounded = space.pooled_rows.view();
        if (matrix.rounds()) kernels.quantize(from, count, matrix.inputs(), rounded, 0, parts_of(count, kRows));
        if (layer.mask != nullptr) {
            space.masked.assign(1, {0, count, 0, layer.mask.get()});
            masked_product(kernels, alone, matrix, space.masked, from, rounded, layer.activation, space.pass, to, scratch);
        } else {
            matrix.product(kernels, alone, from, rounded, count, layer.activation, to, scratch);
        }
        if (layer.norm) kernels.norm(to, nullptr, matrix.outputs(), layer.norm.view(), to, 0, count);
        here = 1 - here;
    }
    const std::size_t answers = static_cast<std::size_t>(count) * head.outputs(hidden);
    std::copy_n(pooled[here].data(), answers, out);
    return answers;
}

}  // namespace slimformer
