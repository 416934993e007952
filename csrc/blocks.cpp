#include "blocks.h"

namespace slimformer {

namespace {

// Turns the halves of one head of a query or key against each other, by the angles of its position.
void turn(float* x, const float* cosines, const float* sines, int half) {
    for (int i = 0; i < half; i++) {
        const float one = x[i], other = x[i + half];
        x[i] = one * cosines[i] - other * sines[i];
        x[i + half] = other * cosines[i] + one * sines[i];
    }
}

void fits(const SharedMatrix& matrix, int outputs, int inputs) {
    if (matrix == nullptr || matrix->outputs() != outputs || matrix->inputs() != inputs)
        throw InputError("a matrix of a block is not " + std::to_string(outputs) + " x " + std::to_string(inputs));
}

}  // namespace

void Stack::add(Block block, int qkv) {
    const int hidden = shape.hidden, width = shape.width(), ffn = block.down == nullptr ? 0 : block.down->inputs();
    const int inner = block.output == nullptr ? 0 : block.output->inputs();
    if (inner % width != 0)
        throw InputError("attention of a width of " + std::to_string(inner) + " with heads of " + std::to_string(width));
    fits(block.qkv, qkv, hidden);
    fits(block.output, hidden, inner);
    fits(block.up, shape.gated ? 2 * ffn : ffn, hidden);
    fits(block.down, hidden, ffn);
    if (block.rotation != nullptr) check_rotation(*block.rotation, shape.longest, width);
    if (block.window < 0 || block.window > kMost) throw InputError("a window of " + std::to_string(block.window));
    block.attention_norm.check(hidden);
    block.output_norm.check(hidden);
    if (!shape.pre_norm && (!block.attention_norm || !block.output_norm))
        throw InputError("a block without norms after its sub-layers");
    blocks.push_back(std::move(block));
}

void Stack::set_final_norm(FloatNorm norm) {
    norm.check(shape.hidden);
    final_norm = std::move(norm);
}

void Workspace::hold(const Stack& stack, std::size_t tokens, int threads, std::size_t bytes) {
    const Shape& shape = stack.shape;
    const std::size_t size = shape.hidden;
    std::size_t widest = size, inner = size, ffn = 0;
    bool rounds = false;
    for (const Block& block : stack.blocks) {
        widest = std::max<std::size_t>(widest, std::max(block.qkv->outputs(), block.up->outputs()));
        inner = std::max<std::size_t>(inner, block.output->inputs());
        ffn = std::max<std::size_t>(ffn, block.down->inputs());
        for (const Matrix* matrix : {block.qkv.get(), block.output.get(), block.up.get(), block.down.get()})
            bytes = std::max(bytes, matrix->scratch()), rounds = rounds || matrix->rounds();
    }
    grow(hidden, tokens * size);
    grow(context, tokens * inner);
    grow(wide, tokens * widest);
    if (shape.pre_norm || stack.final_norm) grow(normed, tokens * size);
    if (shape.gated) grow(gated, tokens * ffn);
    if (rounds) rows.hold(tokens, inner), wide_rows.hold(tokens, ffn);
    if (scratch.size() < static_cast<std::size_t>(threads)) scratch.resize(threads);
    for (auto& each : scratch)
        if (each.size() < bytes) each.resize(bytes);
}

std::size_t Workspace::bytes() const {
    std::size_t sum = rows.bytes() + wide_rows.bytes() + bytes_of(pass.tiles);
    for (const Memory<float>* each : {&hidden, &normed, &wide, &gated, &context, &pass.columns}) sum += bytes_of(*each);
    for (const auto& each : scratch) sum += bytes_of(each);
    return sum;
}

void check_starts(const std::int32_t* starts, int sequences, int longest) {
    if (starts[0] != 0) throw InputError("a first sequence that does not begin at 0");
    for (int i = 0; i < sequences; i++) {
        const std::int64_t length = std::int64_t{starts[i + 1]} - starts[i];
        if (length < 1 || length > longest)
            throw InputError("a sequence of " + std::to_string(length) + " tokens; give 1 to " + std::to_string(longest));
    }
    if (starts[sequences] >= kMost) throw InputError("too many tokens at once");
}

void check_rotation(const Rotation& rotation, int longest, int width) {
    const std::size_t angles = static_cast<std::size_t>(longest) * (width / 2);
    if (width % 2 != 0 || rotation.cosines.size() != angles || rotation.sines.size() != angles)
        throw InputError("angles of another number of positions or another width of heads");
}

void turn_heads(float* x, int heads, int width, const Rotation& rotation, int position) {
    const int half = width / 2;
    const std::size_t at = static_cast<std::size_t>(position) * half;
    for (int head = 0; head < heads; head++)
        turn(x + head * width, rotation.cosines.data() + at, rotation.sines.data() + at, half);
}

const float* Forward::go_on(const float* computed, const FloatNorm* after, const FloatNorm* before, const Matrix* next) const {
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

void Forward::round(const Matrix& next, const float* from, int width, const QuantizedRows& to) const {
    if (next.rounds()) team.share(tiles, [&](int tile) { kernels.quantize(from, tokens, width, to, tile, tile + 1); });
}

void Forward::multiply(const Block& block, Part part, const float* from, const QuantizedRows& rounded, Activation activation,
                       float* to) const {
    const Matrix& matrix = block.matrix(part);
    if (mixture != nullptr) {
        const auto& parts = mixture->rows(static_cast<std::size_t>(&block - stack.blocks.data()), part);
        if (!parts.empty())
            return masked_product(kernels, team, matrix, parts, from, rounded, activation, work.pass, to, scratch);
    }
    matrix.product(kernels, team, from, rounded, tokens, activation, to, scratch);
}

const float* Forward::finish(std::size_t number) const {
    const Block& block = stack.blocks[number];
    const Block* const next = number + 1 < stack.blocks.size() ? &stack.blocks[number + 1] : nullptr;
    const bool pre = shape.pre_norm;
    round(*block.output, context, block.output->inputs(), rows);
    // What is read in floats cannot be overwritten while it is.
    float* const attended = block.output->rounds() ? context : wide;
    multiply(block, Part::output, context, rows, Activation::none, attended);
    const float* in =
        go_on(attended, pre ? nullptr : &block.attention_norm, pre ? &block.output_norm : nullptr, block.up.get());

    feed_forward(block, in, neurons == nullptr ? block.down->inputs() : neurons[number]);
    return go_on(context, pre ? nullptr : &block.output_norm,
                 next == nullptr ? &stack.final_norm : pre ? &next->attention_norm : nullptr,
                 next == nullptr ? nullptr : next->qkv.get());
}

void Forward::feed_forward(const Block& block, const float* in, int used) const {
    const bool all = used == block.down->inputs();
    const Activation activation = shape.gated ? Activation::none : shape.activation;
    if (all)
        multiply(block, Part::up, in, rows, activation, wide);
    else  // of a gated layer, see `check_neurons`
        block.up->product(kernels, team, in, rows, tokens, {2, used, hidden}, wide, scratch);
    float* const between = shape.gated ? work.gated.data() : wide;
    if (shape.gated)
        team.share(tiles,
                   [&](int tile) { kernels.gate(wide, used, shape.activation, between, first_row(tile), last_row(tile)); });
    round(*block.down, between, used, wide_rows);
    if (all)
        multiply(block, Part::down, between, wide_rows, Activation::none, context);
    else
        block.down->product(kernels, team, between, wide_rows, tokens, {1, hidden, used}, context, scratch);
}

}  // namespace slimformer
