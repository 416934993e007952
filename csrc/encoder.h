// A whole forward of an encoder on ragged batches: matrices of codes with activations rounded to int8, or of floats.
#pragma once

#include "blocks.h"

namespace slimformer {

// A layer behind the blocks.
struct HeadLayer {
    SharedMatrix matrix;
    Activation activation = Activation::none;
    FloatNorm norm;
};

enum class Pooling : int { tokens, first, mean };

// What the first hidden states are made of. Of texts the words are looked up; of images the words are the tokens before
// the patches, and the patches are what is projected.
struct Embeddings {
    Table words, positions, types;
    FloatNorm norm;
    SharedMatrix projection;  // to the width of the blocks; none where rows are as wide
    int position_offset = 0;  // of the first token
    bool images = false;
};

// Sequences one after the other; `starts` has one number more than there are sequences.
struct Input {
    const std::int32_t* ids = nullptr;
    const std::int32_t* types = nullptr;
    const float* patches = nullptr;  // of images, in the place of both
    const std::int32_t* starts = nullptr;
    int sequences = 0;

    int tokens() const { return starts[sequences]; }
};

class Encoder {
   public:
    Encoder(Shape shape, Embeddings embeddings);
    ~Encoder();

    void add_block(Block block);
    void add_head_layer(HeadLayer layer);
    void set_pooling(Pooling pooling) { pooling_ = pooling; }
    void set_final_norm(FloatNorm norm) { stack_.set_final_norm(std::move(norm)); }
    // Added to the scores of each head, by the distance of a key: [heads][2 * longest - 1].
    void set_position_bias(const float* bias);

    const Shape& shape() const { return stack_.shape; }
    const Embeddings& embeddings() const { return embeddings_; }
    int outputs() const { return head_.empty() ? stack_.shape.hidden : head_.back().matrix->outputs(); }
    Pooling pooling() const { return pooling_; }

    // `out` has a row for each sequence, or for each token where nothing is pooled.
    void run(const Kernels& kernels, Pool& pool, int threads, const Input& input, float* out) const;

   private:
    struct Space;

    void check(const Input& input) const;
    void embed(const Forward& forward, const Input& input, Space& space) const;
    void attend(const Forward& forward, const Block& block) const;
    // Pooling and head: little work, which one thread does outside the parallel region, since it may need memory.
    void answer(const Kernels& kernels, const Input& input, Space& space, float* out) const;

    Stack stack_;
    Embeddings embeddings_;
    std::vector<float> position_bias_;
    std::vector<HeadLayer> head_;
    Pooling pooling_ = Pooling::tokens;
    mutable Kept<Space> kept_;
};

}  // namespace slimformer
