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

// A row of rounded values that lie in tiles of so many rows in all, as one of other tiles.
void move_row(const std::int8_t* from, int row, int rows, std::int8_t* to, int new_row, int new_rows, std::size_t length) {
    const int tile = row / kRows * kRows, new_tile = new_row / kRows * kRows;
    const std::size_t step = 4 * std::min(kRows, rows - tile), new_step = 4 * std::min(kRows, new_rows - new_tile);
    from += tile * length + 4 * (row - tile);
    to += new_tile * length + 4 * (new_row - new_tile);
    for (std::size_t k = 0; k < length; k += 4, from += step, to += new_step) std::copy_n(from, 4, to);
}

// The rows of some parts whose tiles follow each other, of `all` that are rounded.
void masked_pass_of_codes(const Kernels& kernels, Team& team, const Matrix& matrix, const MaskedRows* parts, int count,
                          const QuantizedRows& rounded, int all, Activation activation, std::int8_t* tiles, float* out,
                          std::uint8_t* scratch) {
    const MaskedRows* const end = parts + count;
    const CodeMatrix codes = matrix.codes();
    const std::size_t length = padded(codes.inputs, kInputs), tile_size = length * kLanes;
    team.share(end[-1].tile + end[-1].tiles(), [&](int tile) {
        const MaskedRows& part = std::upper_bound(parts, end, tile, [](int number, const MaskedRows& other) { return number < other.tile; })[-1];
        const int first = part.first + (tile - part.tile) * kLanes, last = std::min(part.last, first + kLanes);
        for (int row = first; row < last; row++)
            move_row(rounded.values, row, all, tiles + part.tile * tile_size, row - part.first, part.last - part.first, length);
    });
    share_panels(team, codes.outputs, codes.inputs, end[-1].last - parts->first, [&](int first, int last) {
        for (const MaskedRows* part = parts; part != end; part++) {
            const QuantizedRows rows = {tiles + part->tile * tile_size, rounded.scales + part->first, rounded.sums + part->first};
            const MaskRows listed = part->mask == nullptr ? MaskRows() : part->mask->view();
            kernels.masked_codes(rows, part->last - part->first, codes, listed, activation,
                                 out + static_cast<std::size_t>(part->first) * codes.outputs, first, last, scratch);
        }
    });
}

}  // namespace

void add_rows(std::vector<MaskedRows>& parts, int first, int last, const Mask* mask) {
    while (first < last) {
        int tile = parts.empty() ? 0 : parts.back().tile + parts.back().tiles();
        if (tile == kTilesOfPass) tile = 0;
        const int end = std::min(last, first + (kTilesOfPass - tile) * kLanes);
        parts.push_back({first, end, tile, mask});
        first = end;
    }
}

void PassMemory::hold(const Matrix& matrix, int tiles_of_pass) {
    const std::size_t rows = static_cast<std::size_t>(tiles_of_pass) * kLanes;
    if (!matrix.rounds() && columns.size() < rows * matrix.inputs()) columns.resize(rows * matrix.inputs());
    const std::size_t length = padded(matrix.inputs(), kInputs);
    if (matrix.rounds() && tiles.size() < rows * length) tiles.resize(rows * length);
}

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
    if (matrix.outputs() != outputs() || matrix.inputs() != inputs_)
        throw InputError("a mask of " + std::to_string(outputs()) + " x " + std::to_string(inputs_) + " for a matrix of " +
                         std::to_string(matrix.outputs()) + " x " + std::to_string(matrix.inputs()));
    if (!matrix.rounds()) return;
    const CodeMatrix codes = matrix.codes();
    if (codes.lowest > 0 || -codes.lowest % codes.stride != 0 || -codes.lowest / codes.stride > codes.most)
        throw InputError("a mask of a matrix of codes none of which is 0");
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
                    const float* x, const QuantizedRows& rounded, Activation activation, PassMemory& memory, float* out,
                    std::uint8_t* scratch) {
    for (auto begin = parts.begin(), end = begin; begin != parts.end(); begin = end) {
        end = std::find_if(begin + 1, parts.end(), [](const MaskedRows& part) { return part.tile == 0; });
        const int count = static_cast<int>(end - begin);
        if (matrix.rounds())
            masked_pass_of_codes(kernels, team, matrix, &*begin, count, rounded, parts.back().last, activation,
                                 memory.tiles.data(), out, scratch);
        else
            masked_pass(kernels, team, matrix, &*begin, count, x, activation, memory.columns.data(), out);
    }
}

void multiply_masked(const Kernels& kernels, Pool& pool, int threads, const Matrix& matrix, const std::vector<MaskedRows>& parts,
                     const float* x, Activation activation, float* out) {
    if (parts.empty()) return;
    const int rows = parts.back().last;
    for (const MaskedRows& part : parts)
        if (part.mask != nullptr) part.mask->check(matrix);
    RoundedRows rounded;
    if (matrix.rounds()) rounded.hold(rows, matrix.inputs());
    PassMemory memory;
    memory.hold(matrix, kTilesOfPass);
    std::vector<Memory<std::uint8_t>> scratch(std::max(1, std::min(threads, pool.threads())));
    for (auto& each : scratch) each.resize(matrix.scratch());
    pool.run(threads, [&](Team& team, int thread) {
        if (matrix.rounds())
            team.share(parts_of(rows, kRows),
                       [&](int tile) { kernels.quantize(x, rows, matrix.inputs(), rounded.view(), tile, tile + 1); });
        masked_product(kernels, team, matrix, parts, x, rounded.view(), activation, memory, out, scratch[thread].data());
    });
}

}  // namespace slimformer
