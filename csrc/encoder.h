// A whole forward of an encoder on ragged batches: matrices of codes with activations rounded to int8, or of floats.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "threads.h"

namespace slimformer {

// Something that is wrong with what was handed over; said to whoever did.
struct InputError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// More tokens, positions or rows than there are at once: numbers below it can be added and doubled without a care.
constexpr int kMost = 1 << 24;

constexpr int parts_of(int count, int size) { return count / size + (count % size != 0); }

// Memory that begins where a line of the cache does, so that a vector of floats never lies in two.
template <class Number>
struct LineAllocator {
    using value_type = Number;
    static constexpr std::align_val_t kLine{64};

    LineAllocator() = default;
    template <class Other>
    LineAllocator(const LineAllocator<Other>&) {}

    Number* allocate(std::size_t count) { return static_cast<Number*>(::operator new(count * sizeof(Number), kLine)); }
    void deallocate(Number* memory, std::size_t) { ::operator delete(memory, kLine); }
    bool operator==(const LineAllocator&) const { return true; }
    bool operator!=(const LineAllocator&) const { return false; }
};

template <class Number>
using Memory = std::vector<Number, LineAllocator<Number>>;

// How codes lie in the bytes of a file: units of some bytes, the lowest first, hold digits of a base, the first one
// lowest, and code = stride * digit + lowest. Of the codes that digits can stand for, those from `first` to `last` are used.
struct Layout {
    int base = 0;
    int digits = 0;
    int lowest = 0;
    int stride = 1;
    int bytes = 1;
    int first = 0;
    int last = 0;

    // Refuses what no file has, so that codes can be read without a look at it.
    void check() const;
};

// Rows of codes as a file holds them, with scales for groups of columns.
struct PackedRows {
    const std::uint8_t* codes = nullptr;
    const float* scales = nullptr;  // [rows][columns / group, rounded up]
    int rows = 0;
    int columns = 0;
    int group = 0;
    Layout layout;

    // Refuses shapes that codes do not come in; only then the numbers below are any.
    void check() const;
    std::size_t row_bytes() const { return parts_of(columns, layout.digits) * static_cast<std::size_t>(layout.bytes); }
    std::size_t groups() const { return parts_of(columns, group); }
};

// Rows of activations that are rounded to int8, and the memory for them.
class RoundedRows {
   public:
    void hold(std::size_t rows, std::size_t inputs) {
        const std::size_t length = padded(inputs, kInputs);
        if (values_.size() < rows * length) values_.resize(rows * length);
        if (scales_.size() < rows) scales_.resize(rows), sums_.resize(rows);
    }
    QuantizedRows view() { return {values_.data(), scales_.data(), sums_.data()}; }

   private:
    Memory<std::int8_t> values_;
    Memory<float> scales_;
    Memory<std::int32_t> sums_;
};

// A matrix of the codes of a layout with scales for groups of inputs; panels, scales and bias are still to be set.
CodeMatrix code_matrix(int outputs, int inputs, const Layout& layout, int group);

// The codes of one output.
void read_row(const CodeMatrix& codes, int output, std::int8_t* to);

// activation(x W^T + bias) for [rows][inputs] floats, which are rounded first.
void multiply_codes(const Kernels& kernels, Pool& pool, int threads, const CodeMatrix& codes, const float* x, int rows,
                    Activation activation, float* out);

// A matrix that owns its panels; several matrices that read the same input may be one.
class Matrix {
   public:
    // Of floats or bfloat16, or of the codes of a layout with scales for groups of inputs.
    Matrix(int outputs, int inputs, bool bfloat16 = false);
    Matrix(int outputs, int inputs, const Layout& layout, int group);

    // Set rows from `first` on; a bias has one float for each row, and there may be none.
    void set_rows(int first, const PackedRows& rows, const float* bias);
    void set_rows(int first, const float* rows, int count, const float* bias);
    void set_rows(int first, const std::uint16_t* bfloat16, int count, const float* bias);

    int outputs() const { return outputs_; }
    int inputs() const { return inputs_; }
    // Whether rows that it is multiplied with are rounded to int8 before.
    bool rounds() const { return rounds_; }
    std::size_t bytes() const;
    // What it is made of, where it rounds: its memory, which it must outlive.
    CodeMatrix codes() const;
    // Bytes that each thread needs for a product.
    std::size_t scratch() const { return rounds() ? scratch_bytes(inputs_, codes_.bits) : 0; }

    // activation(x W^T + bias) by all threads of a team; of `x` and `rounded` one is read.
    void product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                 Activation activation, float* out, std::uint8_t* scratch) const;

    // The same by itself, for [rows][inputs] floats.
    void multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                  float* out) const;

   private:
    void check(int first, int rows, int columns) const;
    template <class Weight>
    void fill_panels(Memory<Weight>& panels, int first, const Weight* rows, int count, const float* bias);

    int outputs_;
    int inputs_;
    bool rounds_;
    CodeMatrix codes_;  // but for its pointers
    Memory<std::uint8_t> panels_;
    Memory<float> floats_;
    Memory<std::uint16_t> bfloat16_;
    Memory<float> scales_;
    Memory<float> bias_;
};

using SharedMatrix = std::shared_ptr<const Matrix>;

// Rows that are looked up: codes with scales, floats, or bfloat16. The memory is the caller's.
struct Table {
    PackedRows packed;
    const float* floats = nullptr;            // [rows][columns]
    const std::uint16_t* bfloat16 = nullptr;  // [rows][columns]
    int rows = 0;
    int columns = 0;

    void check() const;
    void add_row(int row, float* to) const;
};

// A norm over the last axis; none where it has no weights.
struct FloatNorm {
    std::vector<float> weight;
    std::vector<float> bias;
    float epsilon = 0;

    explicit operator bool() const { return !weight.empty(); }
    // Refuses one of another width.
    void check(int width) const;
    Norm view() const { return {weight.data(), bias.data(), epsilon}; }
};

// Cosines and sines by which queries and keys are turned, [positions][half the width of a head] each.
struct Rotation {
    std::vector<float> cosines, sines;
};

struct Block {
    SharedMatrix qkv, output, up, down;  // where the block is gated, `up` has the gate before what is gated
    FloatNorm attention_norm, output_norm;
    int window = 0;                             // how far attention reaches; 0 where all tokens are seen
    std::shared_ptr<const Rotation> rotation;  // none where positions are not told by turning
};

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

struct Shape {
    int hidden = 0;
    int heads = 0;    // where none was taken out of a block
    int longest = 0;  // tokens of a sequence
    Activation activation = Activation::gelu;
    bool pre_norm = false;
    bool gated = false;

    int width() const { return hidden / heads; }  // of one head
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
    void set_final_norm(FloatNorm norm);
    // Added to the scores of each head, by the distance of a key: [heads][2 * longest - 1].
    void set_position_bias(const float* bias);

    const Shape& shape() const { return shape_; }
    const Embeddings& embeddings() const { return embeddings_; }
    int outputs() const { return head_.empty() ? shape_.hidden : head_.back().matrix->outputs(); }
    Pooling pooling() const { return pooling_; }

    // `out` has a row for each sequence, or for each token where nothing is pooled.
    void run(const Kernels& kernels, Pool& pool, int threads, const Input& input, float* out) const;

   private:
    struct Workspace;
    struct Forward;

    void check(const Input& input) const;
    std::unique_ptr<Workspace> take_workspace() const;
    void keep_workspace(std::unique_ptr<Workspace> work) const;
    // Pooling and head: little work, which one thread does outside the parallel region, since it may need memory.
    void answer(const Kernels& kernels, const Input& input, Workspace& work, float* out) const;

    Shape shape_;
    Embeddings embeddings_;
    std::vector<Block> blocks_;
    FloatNorm final_norm_;
    std::vector<float> position_bias_;
    std::vector<HeadLayer> head_;
    Pooling pooling_ = Pooling::tokens;
    // Memory of forwards that are over, for the next ones; each forward has one of its own. No lock is held, so that a
    // process that is forked meanwhile finds none.
    static constexpr int kKept = 8;
    static constexpr std::size_t kMostKept = 1 << 24;  // floats of the widest part
    mutable std::atomic<Workspace*> kept_[kKept] = {};
};

}  // namespace slimformer
