// Matrices and tables of codes, floats and bfloat16, and the norms beside them.
#pragma once

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
    std::size_t bytes() const { return values_.capacity() + 4 * (scales_.capacity() + sums_.capacity()); }

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

// Of a matrix the first `outputs` of each of some parts, which are as high as each other, and the first `inputs`. Where
// there are several parts, they begin at multiples of 16.
struct Prefix {
    int parts = 1;
    int outputs = 0;
    int inputs = 0;
};

// Panels that a thread takes at once.
int panels_at_once(int rows, int inputs);

// Calls `work(first, last)` for all panels, over the threads of a team.
template <class Work>
void share_panels(Team& team, int outputs, int inputs, int rows, const Work& work) {
    const int panels = parts_of(outputs, kColumns), size = panels_at_once(rows, inputs);
    team.share(parts_of(panels, size), [&](int part) {
        const int first = part * size;
        work(first, panels - first < size ? panels : first + size);
    });
}

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
    // A matrix of some of its outputs, in the order they are named in.
    std::shared_ptr<Matrix> select(const std::int32_t* chosen, int count) const;
    // Whether rows that it is multiplied with are rounded to int8 before.
    bool rounds() const { return rounds_; }
    std::size_t bytes() const;
    // What it is made of, where it rounds: its memory, which it must outlive.
    CodeMatrix codes() const;
    // Likewise where it does not.
    FloatMatrix floats() const;
    // Bytes that each thread needs for a product.
    std::size_t scratch() const { return rounds() ? scratch_bytes(inputs_, codes_.bits) : 0; }

    // activation(x W^T + bias) by all threads of a team; of `x` and `rounded` one is read.
    void product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                 Activation activation, float* out, std::uint8_t* scratch) const;

    // The same by a part of the matrix; the outputs of its parts lie one after the other in a row of the answer.
    void product(const Kernels& kernels, Team& team, const float* x, const QuantizedRows& rounded, int rows,
                 const Prefix& prefix, float* out, std::uint8_t* scratch) const;

    // x W^T + bias of a matrix of floats; `after(floats, first, last)` is called by the thread that computed those panels.
    template <class After>
    void product(const Kernels& kernels, Team& team, const float* x, int rows, float* out, const After& after) const {
        const FloatMatrix matrix = floats();
        share_panels(team, outputs_, inputs_, rows, [&](int first, int last) {
            kernels.floats(x, rows, matrix, Activation::none, out, first, last);
            after(matrix, first, last);
        });
    }

    // The same by itself, for [rows][inputs] floats.
    void multiply(const Kernels& kernels, Pool& pool, int threads, const float* x, int rows, Activation activation,
                  float* out) const;

   private:
    // Room for so many outputs of the kind of another one.
    Matrix(const Matrix& kind, int outputs);

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
    std::size_t bytes() const;
};

// A norm over the last axis; none where it has no weights.
struct FloatNorm {
    std::vector<float> weight;
    std::vector<float> bias;
    float epsilon = 0;
    bool centred = true;  // whether the mean is taken off

    explicit operator bool() const { return !weight.empty(); }
    // Refuses one of another width.
    void check(int width) const;
    Norm view() const { return {weight.data(), bias.data(), epsilon, centred}; }
};

}  // namespace slimformer
