// x86 with AVX2 and FMA. Compiled with these switched on; nothing in here runs before the processor was asked.
#include <cmath>
#include <type_traits>

#include "vector_avx2.h"

namespace slimformer {
namespace avx2 {
#include "kernels.inl"
}  // namespace avx2

extern const Kernels kAvx2 = {"avx2", avx2::quantize, avx2::codes, avx2::masked_codes, avx2::floats, avx2::mask, avx2::norm, avx2::gate, avx2::attend,
                                 avx2::keep, avx2::attend_kept};

}  // namespace slimformer
