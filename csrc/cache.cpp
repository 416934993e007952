#include "decoder.h"

namespace slimformer {

namespace {

// Rows of `from` numbers each, as the beginnings of longer ones.
template <class Number>
Memory<Number> widen(const Memory<Number>& numbers, std::size_t rows, std::size_t from, std::size_t to) {
    Memory<Number> wider(rows * to);
    for (std::size_t row = 0; row < rows; row++) std::copy_n(numbers.data() + row * from, from, wider.data() + row * to);
    return wider;
}

std::size_t key_bytes(const KeptShape& shape, std::size_t positions) {
    return positions / kLanes * KeptHead::key_bytes(shape.width, shape.rounded);
}

std::size_t value_floats(const KeptShape& shape, std::size_t positions) { return positions * padded(shape.width, kLanes); }

}  // namespace

Cache::Cache(std::uint64_t decoder, std::vector<KeptShape> shapes) : decoder_(decoder), shapes_(std::move(shapes)) {
    for (const KeptShape& shape : shapes_) blocks_.push_back({shape, {}, {}, {}});
}

void Cache::crop(int length) {
    if (busy_.exchange(true)) throw InputError("a cache that is in use");
    const bool fits = length >= 0 && length <= length_;
    const int kept = length_;
    if (fits) length_ = length;
    busy_ = false;
    if (!fits) throw InputError("a length of " + std::to_string(length) + " for a cache of " + std::to_string(kept) + " tokens");
}

std::size_t Cache::bytes() const {
    std::size_t sum = 0;
    const std::size_t positions = capacity_;
    for (const KeptShape& shape : shapes_)
        sum += shape.heads * (key_bytes(shape, positions) + sizeof(float) * (positions + value_floats(shape, positions)));
    return sum;
}

void Cache::reserve(int length) {
    if (length <= capacity_) return;
    const std::size_t before = capacity_, after = padded(std::max(length, 2 * capacity_.load()), kLanes);
    std::vector<Block> wider;
    for (const Block& block : blocks_) {
        const KeptShape& shape = block.shape;
        wider.push_back({shape, widen(block.keys, shape.heads, key_bytes(shape, before), key_bytes(shape, after)),
                         widen(block.key_scales, shape.heads, before, after),
                         widen(block.values, shape.heads, value_floats(shape, before), value_floats(shape, after))});
    }
    blocks_ = std::move(wider);
    capacity_ = static_cast<int>(after);
}

KeptHead Cache::head(std::size_t block, int number) {
    Block& of = blocks_[block];
    const std::size_t all = capacity_;
    return {of.keys.data() + number * key_bytes(of.shape, all), of.key_scales.data() + number * all,
            of.values.data() + number * value_floats(of.shape, all)};
}

}  // namespace slimformer
