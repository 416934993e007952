// Masks of tasks that share the matrices of one base, and batches in which each row belongs to a task.
#pragma once

#include "matrix.h"

namespace slimformer {

// Which weights of a matrix a task keeps, as the kernels read it.
class Mask {
   public:
    // [outputs][inputs] bytes, 0 where a weight is dropped.
    Mask(int outputs, int inputs, const std::uint8_t* kept);

    int outputs() const { return static_cast<int>(keeps_.size()); }
    int inputs() const { return inputs_; }
    std::size_t bytes() const { return 4 * starts_.size() + gaps_.size() + keeps_.size(); }
    MaskRows view() const { return {starts_.data(), gaps_.data(), keeps_.data()}; }
    // Refuses a matrix of another shape, or one of codes none of which is 0.
    void check(const Matrix& matrix) const;

   private:
    int inputs_;
    std::vector<std::uint32_t> starts_;
    std::vector<std::uint8_t> gaps_;
    std::vector<std::uint8_t> keeps_;
};

using SharedMask = std::shared_ptr<const Mask>;

// Masks of the matrices of a block, in the order of a forward; none where all weights are kept.
constexpr int kBlockMatrices = 4;
enum class Part : int { qkv, output, up, down };

struct BlockMasks {
    SharedMask of[kBlockMatrices];
};

// Tiles of 16 rows that are multiplied at once: few enough for the cache, and for the memory that they take beside the
// rows themselves.
constexpr int kTilesOfPass = 16;

// Rows that belong to one task, and what it keeps of a matrix: all where there is no mask. `tile` is the first of their
// tiles of 16, which are no rows of another task; where it is 0, a pass begins.
struct MaskedRows {
    int first = 0;
    int last = 0;
    int tile = 0;
    const Mask* mask = nullptr;

    int tiles() const { return parts_of(last - first, kLanes); }
};

// Adds rows of one task, those behind the last ones that there are, as parts of passes that are not too long.
void add_rows(std::vector<MaskedRows>& parts, int first, int last, const Mask* mask);

// All rows of a batch, task by task, for every matrix; those of a matrix that no task masks are none.
struct Mixture {
    std::vector<std::vector<MaskedRows>> matrices;  // `kBlockMatrices` of each block

    const std::vector<MaskedRows>& rows(std::size_t block, Part part) const {
        return matrices[block * kBlockMatrices + static_cast<int>(part)];
    }
};

// Memory for the rows of the longest pass, as products with masks read them.
struct PassMemory {
    Memory<float> columns;      // where they are floats, [tiles][inputs][16]
    Memory<std::int8_t> tiles;  // where they are rounded, each task with tiles of its own that begin with its first row

    void hold(const Matrix& matrix, int tiles_of_pass);
};

// Up to 16 rows of floats side by side, [inputs][16]; those that are not there are 0.
void turn_rows(const float* x, int rows, int inputs, float* columns);

// activation(x (W ⊙ M)^T + bias) by all threads of a team, with the mask of each row; of `x` and `rounded` one is read, and
// has the rows of all parts. `scratch` is that of the matrix, of each thread.
//
// Of floats, rows of all tasks share one product with W, and what a task drops is taken off. Codes are unpacked for each
// product anyway: there a task's are unpacked, the few it drops are set to 0, and its rows are multiplied, which gives the
// very integers that taking them off would, in less time where a task has more than a few rows.
void masked_product(const Kernels& kernels, Team& team, const Matrix& matrix, const std::vector<MaskedRows>& parts,
                    const float* x, const QuantizedRows& rounded, Activation activation, PassMemory& memory, float* out,
                    std::uint8_t* scratch);

// The same by itself, for [rows][inputs] floats.
void multiply_masked(const Kernels& kernels, Pool& pool, int threads, const Matrix& matrix, const std::vector<MaskedRows>& parts,
                     const float* x, Activation activation, float* out);

}  // namespace slimformer
