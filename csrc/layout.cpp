// What codes, tables and norms must be before anything is read of them.
#include "matrix.h"

namespace slimformer {

namespace {

void need(bool fits, const char* what) {
    if (!fits) throw InputError(what);
}

}  // namespace

void Layout::check() const {
    need(base >= 2 && base <= 256 && digits >= 1 && stride >= 1 && stride <= 256 && bytes >= 1 && bytes <= 7,
         "a layout without digits");
    std::uint64_t room = std::uint64_t{1} << 8 * bytes;  // divided, since a product may wrap to one that fits
    for (int i = 0; i < digits; i++) need((room /= base) > 0, "digits that do not fit");
    const int range = (base - 1) * stride;
    need(lowest >= -128 && lowest <= 127 - range && first >= lowest && last > first && last <= lowest + range &&
             (first - lowest) % stride == 0 && (last - first) % stride == 0,
         "codes that no digit stands for");
}

void PackedRows::check() const {
    layout.check();
    need(rows >= 0 && columns >= 1 && group >= 1, "rows without columns");
}

void Table::check() const {
    need(rows >= 0 && columns >= 0 && columns < kMost, "a table of this size");
    if (rows == 0 || floats != nullptr || bfloat16 != nullptr) return;
    packed.check();
    need(packed.rows == rows && packed.columns == columns, "codes of another number of columns");
}

void FloatNorm::check(int width) const {
    need(weight.empty() || (weight.size() == static_cast<std::size_t>(width) && bias.size() == weight.size()),
         "a norm of another width");
}

}  // namespace slimformer
