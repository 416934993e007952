// x86 with AVX-512 and VNNI. Compiled with these switched on; nothing in here runs before the processor was asked.
#include <cmath>
#include <type_traits>

#include "vector_avx512.h"

namespace slimformer {
namespace avx512 {
#include "kernels.inl"
}  // namespace avx512

extern const Kernels kAvx512 = {"avx512vnni", avx512::quantize, avx512::codes, avx512::masked_codes, avx512::floats, avx512::mask, avx512::norm, avx512::gate, avx512::attend,
                                 avx512::keep, avx512::attend_kept};

}  // namespace slimformer
