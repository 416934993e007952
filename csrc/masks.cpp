#include "masks.h"

#include <algorithm>
#include <limits>

namespace slimformer {

namespace {

// A byte that skips so many inputs and lists none.
constexpr int kSkip = 255;

// The rows of some parts whose tiles follow each other.
void masked_pass(const Kernels& kernels, Team& team, const Matrix& matrix, const MaskedRows* parts, int count, const float* x,
                 Activation activation, float* columns, float* out) {
    const MaskedRows *const end = parts + count, &last_part = end[-1];
    const int inputs = matrix.inputs(), begin = parts->first;
    const std::size_t tile_size = static_cast<std::size_t>(inputs) * kLanes;
    team.share(last_part.tile + last_part.tiles(), [&](int tile) {
        const MaskedRows& part = std::upper_bound(parts, end, tile, [](int number, const MaskedRows& other) { return number < other.tile; })[-1];
        if (part.mask == nullptr) return;
        const int first = part.first + (tile - part.tile) * kLanes, rows = std::min<int>(kLanes, part.last - first);
        turn_rows(x + static_cast<std::size_t>(first) * inputs, rows, inputs, columns + tile * tile_size);
    });
    float* const to = out + static_cast<std::size_t>(begin) * matrix.outputs();
    matrix.product(kernels, team, x + static_cast<std::size_t>(begin) * inputs, last_part.last - begin, to,
                   [&](const FloatMatrix& floats, int first, int last) {
                       for (const MaskedRows* part = parts; part != end; part++) {
                           const MaskRows listed = part->mask == nullptr ? MaskRows() : part->mask->view();
                           kernels.mask(columns + part->tile * tile_size, part->last - part->first, floats, listed, activation,
                                        to + static_cast<std::size_t>(part->first - begin) * floats.outputs, first, last);
                       }
                   });
}

}  // namespace

Mask::Mask(int outputs, int inputs, const std::uint8_t* kept) : inputs_(inputs) {
    if (outputs < 1 || inputs < 1 || outputs > 1 << 24 || inputs > 1 << 16)
        throw InputError("a mask of " + std::to_string(outputs) + " x " + std::to_string(inputs));
    starts_.reserve(static_cast<std::size_t>(outputs) + 1);
    keeps_.reserve(outputs);
    starts_.push_back(0);
    for (int output = 0; output < outputs; output++) {
        const std::uint8_t* row = kept + static_cast<std::size_t>(output) * inputs;
        const bool keeps = 2 * std::count(row, row + inputs, 0) > inputs;
        int gap = 0;
        for (int input = 0; input < inputs; input++) {
            if ((row[input] != 0) != keeps) {
                if (++gap == kSkip) gaps_.push_back(kSkip), gap = 0;
                continue;
            }
            gaps_.push_back(static_cast<std::uint8_t>(gap));
            gap = 0;
        }
        if (gaps_.size() > std::numeric_limits<std::uint32_t>::max()) throw InputError("a mask of this size");
        starts_.push_back(static_cast<std::uint32_t>(gaps_.size()));
        keeps_.push_back(keeps);
    }
    gaps_.shrink_to_fit();
}

void Mask::check(const Matrix& matrix) const {
    if (matrix.rounds()) throw InputError("a mask of a matrix of codes");
    if (matrix.outputs() != outputs() || matrix.inputs() != inputs_)
        throw InputError("a mask of " + std::to_string(outputs()) + " x " + std::to_string(inputs_) + " for a matrix of " +
                         std::to_string(matrix.outputs()) + " x " + std::to_string(matrix.inputs()));
}

void turn_rows(const float* x, int rows, int inputs, float* columns) {
    if (rows < kLanes) std::fill_n(columns, static_cast<std::size_t>(inputs) * kLanes, 0.0f);
    // Line by line: rows of some widths all fall on the same few lines of the cache.
    for (int from = 0; from < inputs; from += kLanes) {
        const int to = std::min(inputs, from + kLanes);
        for (int row = 0; row < rows; row++)
            for (int k = from; k < to; k++)
                columns[static_cast<std::size_t>(k) * kLanes + row] = x[static_cast<std::size_t>(row) * inputs + k];
    }
}

void masked_product(const Kernels& kernels, Team& team, const Matrix& matrix, const std::vector<MaskedRows>& parts,
                    const float* x, Activation activation, float* columns, float* out) {
    for (auto begin = parts.begin(), end = begin; begin != parts.end(); begin = end) {
        end = std::find_if(begin + 1, parts.end(), [](const MaskedRows& part) { return part.tile == 0; });
        masked_pass(kernels, team, matrix, &*begin, static_cast<int>(end - begin), x, activation, columns, out);
    }
}

}  // namespace slimformer
