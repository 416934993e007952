// A forward of a Llama-like decoder on ragged batches of sequences whose keys and values are kept: root mean square norms
// before the sub-layers, rotary positions (arXiv 2104.09864), heads that share keys (arXiv 2305.13245), gated layers.
#pragma once

#include <cstdint>

#include "blocks.h"

namespace slimformer {

// How keys and values of a block are kept.
struct KeptShape {
    int heads = 0;
    int width = 0;
    bool rounded = false;
};

// Keys and values of the tokens of one sequence, for the decoder that made it.
class Cache {
   public:
    Cache(std::uint64_t decoder, std::vector<KeptShape> shapes);

    // Tokens that are kept.
    int length() const { return length_; }
    // Forgets all tokens but the first ones.
    void crop(int length);
    std::size_t bytes() const;

   private:
    friend class Decoder;
    friend class CacheUse;

    struct Block {
        KeptShape shape;
        Memory<std::uint8_t> keys;  // [heads][capacity / 16] keys of 16 positions
        Memory<float> key_scales;   // [heads][capacity]
        Memory<float> values;       // [heads][capacity][width, rounded up to 16]
    };

    void reserve(int length);
    KeptHead head(std::size_t block, int number);

    const std::uint64_t decoder_;
    const std::vector<KeptShape> shapes_;
    std::vector<Block> blocks_;
    // Other threads may ask for both while a forward makes the cache longer.
    std::atomic<int> length_{0};
    std::atomic<int> capacity_{0};  // a multiple of 16
    std::atomic<bool> busy_{false};
};

// New tokens of some sequences one after the other, as `Input` has them, and what is kept of each.
struct NewTokens {
    const std::int32_t* ids = nullptr;
    const std::int32_t* starts = nullptr;
    int sequences = 0;
    Cache* const* caches = nullptr;
    bool all = false;  // whether logits of all of them are wanted, else of the last one of each sequence
    // Of each block the feed-forward neurons that are used, the first ones: a size nested in the model. All where it is null.
    const std::int32_t* neurons = nullptr;
    const Matrix* head = nullptr;  // in place of the decoder's own, such as a part of it

    int tokens() const { return starts[sequences]; }
    int answers() const { return all ? tokens() : sequences; }
};

class Decoder {
   public:
    // Rows of `words` are multiplied with `scale`.
    Decoder(Shape shape, Table words, float scale);
    ~Decoder();

    // Norms of each head's queries and keys may be none.
    void add_block(Block block, FloatNorm query_norm, FloatNorm key_norm);
    void set_final_norm(FloatNorm norm) { stack_.set_final_norm(std::move(norm)); }
    void set_head(SharedMatrix head);

    const Shape& shape() const { return stack_.shape; }
    const std::vector<Block>& blocks() const { return stack_.blocks; }
    const SharedMatrix& head() const { return head_; }
    int vocabulary() const { return head_ == nullptr ? 0 : head_->outputs(); }
    std::unique_ptr<Cache> make_cache() const;

    // Logits, [answers][vocabulary, or outputs of another head]; the tokens are kept from then on. Where it throws, no cache has changed.
    void run(const Kernels& kernels, Pool& pool, int threads, const NewTokens& input, float* out) const;

   private:
    struct Space;
    struct HeadNorms {
        FloatNorm query, key;
    };

    void check(const NewTokens& input) const;
    void check_neurons(const std::int32_t* neurons) const;
    const Matrix& head_for(const NewTokens& input) const { return input.head == nullptr ? *head_ : *input.head; }
    int kept_heads(const Block& block) const;
    void embed(const Forward& forward, const NewTokens& input) const;
    void attend(const Forward& forward, const NewTokens& input, const Block& block, std::size_t number) const;
    void answer(const Forward& forward, const NewTokens& input, Space& space, float* out) const;

    const std::uint64_t number_;  // no other decoder of the process has it
    Stack stack_;
    std::vector<HeadNorms> norms_;
    Table words_;
    const float scale_;
    SharedMatrix head_;
    mutable Kept<Space> kept_;
};

}  // namespace slimformer
