#include "decoder.h"

#include <cmath>

namespace slimformer {

namespace {

std::atomic<std::uint64_t> decoders{0};

}  // namespace

// Caches while a forward uses them, so that none is in two places.
class CacheUse {
   public:
    explicit CacheUse(const NewTokens& input) : input_(input) {
        for (; taken_ < input.sequences; taken_++)
            if (input.caches[taken_]->busy_.exchange(true)) {
                release();
                throw InputError("a cache that is in use");
            }
    }
    ~CacheUse() { release(); }
    CacheUse(const CacheUse&) = delete;
    CacheUse& operator=(const CacheUse&) = delete;

   private:
    void release() {
        while (taken_ > 0) input_.caches[--taken_]->busy_ = false;
    }

    const NewTokens& input_;
    int taken_ = 0;
};

struct Decoder::Space : Workspace {
    Memory<float> last;  // hidden states that logits are computed of
    RoundedRows rounded;

    void hold(const Decoder& decoder, const NewTokens& input, int threads) {
        const Shape& shape = decoder.shape();
        int longest = 0;
        for (int i = 0; i < input.sequences; i++)
            longest = std::max(longest, input.caches[i]->length() + input.starts[i + 1] - input.starts[i]);
        std::size_t bytes = decoder.head_for(input).scratch();
        for (const bool rounds : {false, true}) bytes = std::max(bytes, causal_scratch_bytes(longest, shape.width(), rounds));
        Workspace::hold(decoder.stack_, input.tokens(), threads, bytes);
        grow(last, static_cast<std::size_t>(input.answers()) * shape.hidden);
        rounded.hold(input.answers(), shape.hidden);
    }

    std::size_t bytes() const { return Workspace::bytes() + bytes_of(last) + rounded.bytes(); }
};

Decoder::Decoder(Shape shape, Table words, float scale)
    : number_(++decoders), stack_{shape, {}, {}}, words_(words), scale_(scale) {
    words.check();
    if (shape.hidden < 1 || shape.hidden >= kMost || shape.heads < 1 || shape.heads >= kMost || shape.head_width < 1 ||
        shape.head_width > 1 << 16 || shape.longest < 1 || shape.longest >= kMost)
        throw InputError("a shape of " + std::to_string(shape.hidden) + " with " + std::to_string(shape.heads) +
                         " heads of " + std::to_string(shape.head_width) + " and sequences of " + std::to_string(shape.longest));
    if (words.columns != shape.hidden) throw InputError("embeddings of another width than the blocks");
}

Decoder::~Decoder() = default;

int Decoder::kept_heads(const Block& block) const {
    return (block.qkv->outputs() - block.output->inputs()) / (2 * shape().width());
}

void Decoder::add_block(Block block, FloatNorm query_norm, FloatNorm key_norm) {
    const int width = shape().width();
    if (block.qkv == nullptr || block.output == nullptr) throw InputError("a block without attention");
    const int inner = block.output->inputs(), heads = kept_heads(block);
    if (heads < 1 || inner % width != 0 || inner / width % heads != 0)
        throw InputError("a block of " + std::to_string(inner / width) + " heads that share the keys of " + std::to_string(heads));
    if (block.window != 0) throw InputError("a window of " + std::to_string(block.window));
    if (block.rotation == nullptr || !block.attention_norm || !block.output_norm)
        throw InputError("a block without positions or norms");
    query_norm.check(width);
    key_norm.check(width);
    stack_.add(std::move(block), inner + 2 * heads * width);
    norms_.push_back({std::move(query_norm), std::move(key_norm)});
}

void Decoder::set_head(SharedMatrix head) {
    if (head == nullptr || head->inputs() != shape().hidden) throw InputError("a head of another width than the blocks");
    head_ = std::move(head);
}

std::unique_ptr<Cache> Decoder::make_cache() const {
    std::vector<KeptShape> shapes;
    for (const Block& block : stack_.blocks) shapes.push_back({kept_heads(block), shape().width(), block.qkv->rounds()});
    return std::make_unique<Cache>(number_, std::move(shapes));
}

void Decoder::check(const NewTokens& input) const {
    if (stack_.blocks.empty() || head_ == nullptr) throw InputError("a decoder without blocks or a head");
    check_starts(input.starts, input.sequences, shape().longest);
    for (int i = 0; i < input.sequences; i++) {
        const Cache& cache = *input.caches[i];
        if (cache.decoder_ != number_ || cache.shapes_.size() != stack_.blocks.size())
            throw InputError("a cache that another decoder made, or this one before it was complete");
    }
    for (int i = 0; i < input.tokens(); i++)
        if (input.ids[i] < 0 || input.ids[i] >= words_.rows)
            throw InputError("token " + std::to_string(input.ids[i]) + " of a vocabulary of " + std::to_string(words_.rows));
    if (input.neurons != nullptr) check_neurons(input.neurons);
    if (input.head != nullptr && input.head->inputs() != shape().hidden) throw InputError("a head of another width than the blocks");
    for (const Block& block : stack_.blocks)  // threads share the heads of all tiles, which they count
        if (input.tokens() > kMost * 64 / kept_heads(block)) throw InputError("too many tokens at once");
}

void Decoder::check_neurons(const std::int32_t* neurons) const {
    for (const Block& block : stack_.blocks) {
        const int used = *neurons++, all = block.down->inputs();
        // What is gated begins behind the gate, and a part of a matrix where a panel does.
        if (used < 1 || used > all || (used < all && all % kColumns != 0))
            throw InputError(std::to_string(used) + " of " + std::to_string(all) + " neurons; parts are of a multiple of " +
                             std::to_string(kColumns));
    }
}

void Decoder::embed(const Forward& forward, const NewTokens& input) const {
    const int hidden = shape().hidden;
    forward.team.share(forward.tiles, [&](int tile) {
        for (int token = forward.first_row(tile); token < forward.last_row(tile); token++) {
            float* row = forward.x + static_cast<std::size_t>(token) * hidden;
            std::fill(row, row + hidden, 0.0f);
            words_.add_row(input.ids[token], row);
            for (int i = 0; i < hidden; i++) row[i] *= scale_;
        }
    });
}

void Decoder::attend(const Forward& forward, const NewTokens& input, const Block& block, std::size_t number) const {
    const int width = shape().width(), heads = block.output->inputs() / width, kept = kept_heads(block);
    const int group = heads / kept;
    const std::size_t row_length = block.qkv->outputs();
    const bool rounded = block.qkv->rounds();
    const Kernels& kernels = forward.kernels;
    const HeadNorms& norms = norms_[number];
    forward.team.share(forward.tiles, [&](int tile) {
        forward.each_token(tile, [&](int token, int sequence, int place) {
            float* const queries = forward.wide + token * row_length;
            float *const keys = queries + heads * width, *const values = keys + kept * width;
            Cache& cache = *input.caches[sequence];
            const int position = cache.length() + place;
            if (norms.query) kernels.norm(queries, nullptr, width, norms.query.view(), queries, 0, heads);
            if (norms.key) kernels.norm(keys, nullptr, width, norms.key.view(), keys, 0, kept);
            turn_heads(queries, heads + kept, width, *block.rotation, position);
            for (int head = 0; head < kept; head++)
                kernels.keep(keys + head * width, values + head * width, width, rounded, cache.head(number, head), position);
        });
    });
    const float factor = 1.0f / std::sqrt(static_cast<float>(width));
    forward.team.share(forward.tiles * kept, [&](int part) {
        const int head = part % kept, end = forward.last_row(part / kept);
        for (int token = forward.first_row(part / kept); token < end;) {
            const int sequence = forward.sequence_of(token), first = forward.starts[sequence];
            const int count = std::min(end, forward.starts[sequence + 1]) - token;
            const std::size_t inner = static_cast<std::size_t>(heads) * width, offset = static_cast<std::size_t>(head) * group * width;
            Cache& cache = *input.caches[sequence];
            const CausalAttention attention = {forward.wide + token * row_length + offset,
                                               row_length,
                                               forward.context + token * inner + offset,
                                               inner,
                                               count,
                                               cache.length() + token - first,
                                               group,
                                               width,
                                               factor,
                                               rounded};
            kernels.attend_kept(attention, cache.head(number, head), forward.scratch);
            token += count;
        }
    });
}

void Decoder::answer(const Forward& forward, const NewTokens& input, Space& space, float* out) const {
    const int hidden = shape().hidden, count = input.answers();
    const Matrix& head = head_for(input);
    const float* from = forward.result();
    const QuantizedRows rounded = space.rounded.view();
    if (!input.all) {
        forward.team.share(parts_of(count, kRows), [&](int tile) {
            for (int i = tile * kRows; i < std::min(count, (tile + 1) * kRows); i++) {
                const std::size_t last = input.starts[i + 1] - 1;
                std::copy_n(from + last * hidden, hidden, space.last.data() + static_cast<std::size_t>(i) * hidden);
            }
        });
        from = space.last.data();
    }
    if (head.rounds())
        forward.team.share(parts_of(count, kRows), [&](int tile) {
            forward.kernels.quantize(from, count, hidden, rounded, tile, tile + 1);
        });
    head.product(forward.kernels, forward.team, from, rounded, count, Activation::none, out, forward.scratch);
}

void Decoder::run(const Kernels& kernels, Pool& pool, int threads, const NewTokens& input, float* out) const {
    const CacheUse use(input);
    check(input);
    if (input.sequences == 0) return;
    for (int i = 0; i < input.sequences; i++) {
        Cache& cache = *input.caches[i];
        const int added = input.starts[i + 1] - input.starts[i];
        if (cache.length_ > shape().longest - added)
            throw InputError(std::to_string(added) + " tokens after " + std::to_string(cache.length_) + "; there is room for " +
                             std::to_string(shape().longest));
        cache.reserve(cache.length_ + added);
    }
    const StandardFloats floats;
    std::unique_ptr<Space> space = kept_.take();
    space->hold(*this, input, std::max(1, std::min(threads, pool.threads())));
    pool.run(threads, [&](Team& team, int thread) {
        const Forward forward = {stack_,          kernels,         team, *space, input.starts,
                                 input.sequences, space->scratch[thread].data(), input.neurons};
        embed(forward, input);
        forward.run([&](const Block& block, std::size_t number) { attend(forward, input, block, number); });
        answer(forward, input, *space, out);
    });
    for (int i = 0; i < input.sequences; i++) input.caches[i]->length_ += input.starts[i + 1] - input.starts[i];
    kept_.keep(std::move(space));
}

}  // namespace slimformer
