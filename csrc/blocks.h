// The blocks that encoders and decoders share: everything but what is embedded and how attention finds its keys.
#pragma once

#include <algorithm>
#include <atomic>

#include "masks.h"

namespace slimformer {

// Cosines and sines by which queries and keys are turned, [positions][half the width of a head] each.
struct Rotation {
    std::vector<float> cosines, sines;
};

struct Block {
    SharedMatrix qkv, output, up, down;  // where the block is gated, `up` has the gate before what is gated
    FloatNorm attention_norm, output_norm;
    int window = 0;                             // how far attention reaches; 0 where all tokens are seen
    std::shared_ptr<const Rotation> rotation;  // none where positions are not told by turning

    const Matrix& matrix(Part part) const {
        return *(part == Part::qkv ? qkv : part == Part::output ? output : part == Part::up ? up : down);
    }
};

struct Shape {
    int hidden = 0;
    int heads = 0;    // where none was taken out of a block
    int longest = 0;  // tokens of a sequence
    Activation activation = Activation::gelu;
    bool pre_norm = false;
    bool gated = false;
    int head_width = 0;  // where it does not follow from the heads

    int width() const { return head_width > 0 ? head_width : hidden / heads; }  // of one head
};

// Blocks one after the other, and the norm behind them.
struct Stack {
    Shape shape;
    std::vector<Block> blocks;
    FloatNorm final_norm;

    // Refuses a block that does not fit; queries, keys and values together are `qkv` wide.
    void add(Block block, int qkv);
    void set_final_norm(FloatNorm norm);
};

inline void grow(Memory<float>& floats, std::size_t size) {
    if (floats.size() < size) floats.resize(size);
}

template <class Numbers>
std::size_t bytes_of(const Numbers& numbers) {
    return numbers.capacity() * sizeof(typename Numbers::value_type);
}

// Memory of one forward.
struct Workspace {
    Memory<float> hidden, normed, wide, gated, context;
    PassMemory pass;  // of masked products
    RoundedRows rows, wide_rows;
    std::vector<Memory<std::uint8_t>> scratch;  // of each thread

    // `bytes` are what a thread needs besides that of the matrices.
    void hold(const Stack& stack, std::size_t tokens, int threads, std::size_t bytes);
    // What it takes up.
    std::size_t bytes() const;
};

// Memory of forwards that are over, for the next ones, which need none of their own then; each has one to itself. No lock
// is held, so that a process that is forked meanwhile finds none.
template <class Kind>
class Kept {
   public:
    Kept() = default;
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() {
        for (auto& each : kept_) delete each.load();
    }

    std::unique_ptr<Kind> take() {
        for (auto& each : kept_)
            if (std::unique_ptr<Kind> work{each.exchange(nullptr)}) {
                bytes_ -= work->bytes();
                return work;
            }
        return std::make_unique<Kind>();
    }

    void keep(std::unique_ptr<Kind> work) {
        const std::size_t bytes = work->bytes();
        if (bytes_.fetch_add(bytes) + bytes <= kMostBytes)
            for (auto& each : kept_) {
                Kind* none = nullptr;
                if (each.compare_exchange_strong(none, work.get())) {
                    work.release();
                    return;
                }
            }
        bytes_ -= bytes;
    }

   private:
    static constexpr int kCount = 8;
    static constexpr std::size_t kMostBytes = 1 << 28;  // of all together: what BERT-base needs for 12,000 tokens
    std::atomic<Kind*> kept_[kCount] = {};
    std::atomic<std::size_t> bytes_{0};
};

// Refuses sequences that begin anywhere but where the one before ends.
void check_starts(const std::int32_t* starts, int sequences, int longest);
// Refuses angles that are not those of all positions and of heads of a width.
void check_rotation(const Rotation& rotation, int longest, int width);
// Turns some heads of a token, one after the other, by the angles of a position.
void turn_heads(float* x, int heads, int width, const Rotation& rotation, int position);

// One thread of a forward through the blocks; every thread goes through the same stages.
struct Forward {
    const Stack& stack;
    const Kernels& kernels;
    Team& team;
    Workspace& work;
    const std::int32_t* const starts;  // of sequences one after the other
    const int sequences;
    std::uint8_t* const scratch;
    const std::int32_t* const neurons = nullptr;  // how many of each block are used, the first ones; all where it is null
    const Mixture* const mixture = nullptr;  // none where all rows are multiplied with the matrices as they are

    const Shape& shape = stack.shape;
    const int tokens = starts[sequences], hidden = shape.hidden, tiles = parts_of(tokens, kRows);
    float *const x = work.hidden.data(), *const wide = work.wide.data(), *const context = work.context.data();
    const QuantizedRows rows = work.rows.view(), wide_rows = work.wide_rows.view();

    int first_row(int tile) const { return tile * kRows; }
    int last_row(int tile) const { return std::min(tokens, (tile + 1) * kRows); }
    int sequence_of(int token) const {
        return static_cast<int>(std::upper_bound(starts, starts + sequences, token) - starts) - 1;
    }

    // Calls `take(token, sequence, position)` for the tokens of a tile.
    template <class Take>
    void each_token(int tile, const Take& take) const {
        int sequence = sequence_of(first_row(tile));
        for (int token = first_row(tile); token < last_row(tile); token++) {
            while (token >= starts[sequence + 1]) sequence++;
            take(token, sequence, token - starts[sequence]);
        }
    }

    // Where what follows the blocks reads.
    const float* result() const { return stack.final_norm ? work.normed.data() : x; }

    // From the embedded tokens in `x` to `result`; `attend(block, number)` makes `context` of the queries, keys and values
    // in `wide`.
    template <class Attend>
    void run(const Attend& attend) const {
        const std::vector<Block>& blocks = stack.blocks;
        const float* in = go_on(nullptr, nullptr, shape.pre_norm ? &blocks[0].attention_norm : nullptr, blocks[0].qkv.get());
        for (std::size_t i = 0; i < blocks.size(); i++) {
            multiply(blocks[i], Part::qkv, in, rows, Activation::none, wide);
            attend(blocks[i], i);
            in = finish(i);
        }
    }

   private:
    // activation(x W^T + bias) of all tokens with a matrix of a block, each row with the mask of its task.
    void multiply(const Block& block, Part part, const float* from, const QuantizedRows& rounded, Activation activation, float* to) const;
    // What of a block comes after its attention; returns where the next one reads.
    const float* finish(std::size_t number) const;
    // Makes `context` of what a block's feed-forward layer reads, by its first neurons where not all of them are used.
    void feed_forward(const Block& block, const float* in, int used) const;
    // Adds what a sub-layer computed to what it read, and readies what the next one reads: all of it once normalised, or
    // with a norm of its own (`before`) where norms stand before the sub-layers. Returns where it lies.
    const float* go_on(const float* computed, const FloatNorm* after, const FloatNorm* before, const Matrix* next) const;
    void round(const Matrix& next, const float* from, int width, const QuantizedRows& to) const;
};

}  // namespace slimformer
