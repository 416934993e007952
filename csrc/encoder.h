// A whole forward of an encoder whose matrices are ternary and whose activations are rounded to int8, on ragged batches.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
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

// How codes lie in the bytes of a file: digits of a base, the first one lowest, code = digit + lowest.
struct Layout {
    int base = 0;
    int digits = 0;
    int lowest = 0;
};

// Rows of codes as a file holds them, with one scale for each row.
struct PackedRows {
    const std::uint8_t* codes = nullptr;
    int rows = 0;
    int columns = 0;
    Layout layout;

    std::size_t row_bytes() const { return (columns + layout.digits - 1) / layout.digits; }
};

// A ternary matrix that owns its panels; several matrices that read the same input may be one.
class Matrix {
   public:
    Matrix(int outputs, int inputs);

    // Sets rows from `first` on; scales and bias have one float for each row.
    void set_rows(int first, const PackedRows& rows, const float* scales, const float* bias);

    TernaryMatrix view() const;
    int outputs() const { return outputs_; }
    int inputs() const { return inputs_; }
    std::size_t bytes() const;

    // activation(x W^T + bias) for [rows][inputs] floats, with each row rounded to int8.
    void multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                  float* out) const;

   private:
    int outputs_;
    int inputs_;
    std::vector<std::uint8_t> panels_;
    std::vector<float> scales_;
    std::vector<float> bias_;
};

// Rows that are looked up: codes with scales, or floats. The memory is the caller's.
struct Table {
    PackedRows packed;
    const float* scales = nullptr;  // [rows]
    const float* floats = nullptr;  // [rows][columns]
    int rows = 0;

    void add_row(int row, int columns, float* to) const;
};

struct FloatNorm {
    std::vector<float> weight;
    std::vector<float> bias;
    float epsilon = 0;

    Norm view() const { return {weight.data(), bias.data(), epsilon}; }
};

struct Block {
    std::shared_ptr<const Matrix> qkv, output, up, down;
    FloatNorm attention_norm, output_norm;
};

// A layer behind the blocks: ternary with rounded inputs, or float.
struct HeadLayer {
    std::shared_ptr<const Matrix> matrix;
    std::vector<float> weight, bias;
    int inputs = 0, outputs = 0;
    Activation activation = Activation::none;
};

enum class Pooling : int { tokens, first, mean };

struct Shape {
    int hidden = 0;
    int heads = 0;
    int ffn = 0;
    int position_offset = 0;  // of the first token
    Activation activation = Activation::gelu;
};

class Encoder {
   public:
    Encoder(Shape shape, Table words, Table positions, Table types, FloatNorm norm);

    void add_block(Block block);
    void add_head_layer(HeadLayer layer);
    void set_pooling(Pooling pooling) { pooling_ = pooling; }

    int hidden() const { return shape_.hidden; }
    int outputs() const { return head_.empty() ? shape_.hidden : head_.back().outputs; }
    Pooling pooling() const { return pooling_; }

    // Tokens of all sequences one after the other; `starts` has one number more than there are sequences. `out` has a
    // row for each sequence, or for each token where nothing is pooled.
    void run(const Kernels& kernels, Pool& pool, int threads, const std::int32_t* ids, const std::int32_t* types,
             const std::int32_t* starts, int sequences, float* out) const;

   private:
    struct Workspace;

    void check(const std::int32_t* ids, const std::int32_t* types, const std::int32_t* starts, int sequences) const;
    void forward(const Kernels& kernels, Team& team, int thread, const std::int32_t* ids, const std::int32_t* types,
                 const std::int32_t* starts, int sequences, Workspace& work) const;
    // Pooling and head: little work, which one thread does outside the parallel region, since it may need memory.
    void answer(const Kernels& kernels, const std::int32_t* starts, int sequences, Workspace& work, float* out) const;

    Shape shape_;
    Table words_, positions_, types_;
    FloatNorm norm_;
    std::vector<Block> blocks_;
    std::vector<HeadLayer> head_;
    Pooling pooling_ = Pooling::tokens;
    // Memory of forwards that are over, for the next one; each forward has one of its own.
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Workspace>> free_;

   public:
    ~Encoder();
};

}  // namespace slimformer
