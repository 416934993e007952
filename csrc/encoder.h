// A whole forward of an encoder on ragged batches: matrices of codes with activations rounded to int8, or of floats.
#pragma once

#include "blocks.h"

namespace slimformer {

// A layer behind the blocks.
struct HeadLayer {
    SharedMatrix matrix;
    Activation activation = Activation::none;
    FloatNorm norm;
    SharedMask mask;  // none where all of the matrix is kept
};

enum class Pooling : int { tokens, first, mean };

// What follows the blocks.
struct Head {
    std::vector<HeadLayer> layers;
    Pooling pooling = Pooling::tokens;

    // Refuses a layer that does not fit behind what is there; the first one reads `hidden` numbers.
    void add(HeadLayer layer, int hidden);
    int outputs(int hidden) const { return layers.empty() ? hidden : layers.back().matrix->outputs(); }
};

// What a task has of its own on an encoder that many tasks share: a mask of any matrix, and a head. Whether it fits an
// encoder is asked when the two are run.
struct Task {
    int hidden = 0;
    std::vector<BlockMasks> blocks;
    Head head;
};

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
    void add_head_layer(HeadLayer layer) { head_.add(std::move(layer), shape().hidden); }
    void set_pooling(Pooling pooling) { head_.pooling = pooling; }
    void set_final_norm(FloatNorm norm) { stack_.set_final_norm(std::move(norm)); }
    // Added to the scores of each head, by the distance of a key: [heads][2 * longest - 1].
    void set_position_bias(const float* bias);

    const Shape& shape() const { return stack_.shape; }
    const Embeddings& embeddings() const { return embeddings_; }
    int outputs() const { return head_.outputs(shape().hidden); }
    Pooling pooling() const { return head_.pooling; }
    // Of its matrices and tables.
    std::size_t bytes() const;

    // `out` has a row for each sequence, or for each token where nothing is pooled.
    void run(const Kernels& kernels, Pool& pool, int threads, const Input& input, float* out) const;
    // The same for sequences of several tasks, each with the masks and the head of its own: `tasks` has one for each, and
    // `out` their answers one after the other. It is fastest where sequences of a task follow each other.
    void run(const Kernels& kernels, Pool& pool, int threads, const Input& input, const Task* const* tasks, float* out) const;

   private:
    struct Space;

    void check(const Input& input) const;
    void check(const Task& task) const;
    // Which rows belong to which task, in `space`.
    void mix(const Input& input, const Task* const* tasks, Space& space) const;
    void forward(const Kernels& kernels, Pool& pool, int threads, const Input& input, Space& space, const Mixture* mixture) const;
    void embed(const Forward& forward, const Input& input, Space& space) const;
    void attend(const Forward& forward, const Block& block) const;
    // Pooling and head for sequences `first` to `last`: little work, which one thread does. Returns how many floats there are.
    std::size_t answer(const Kernels& kernels, const Input& input, Space& space, const Head& head, int first, int last,
                       float* out) const;

    Stack stack_;
    Embeddings embeddings_;
    std::vector<float> position_bias_;
    Head head_;
    mutable Kept<Space> kept_;
};

}  // namespace slimformer
