// Loops that are unrolled before anything else is done with them.
#pragma once

#include <type_traits>

namespace slimformer {

// Calls `work` with 0, 1, … as constants: loops that are unrolled any later leave sums in memory.
template <int count, class Work>
inline __attribute__((always_inline)) void repeat(const Work& work) {
    if constexpr (count > 0) {
        repeat<count - 1>(work);
        work(std::integral_constant<int, count - 1>());
    }
}

}  // namespace slimformer
