// ARM of 64 bits with NEON and the dot product of ARMv8.2. Compiled with these switched on; nothing in here runs before
// the processor was asked.
#include <cmath>
#include <type_traits>

#include "vector_neon.h"

namespace slimformer {
namespace neon {
#include "kernels.inl"
}  // namespace neon

extern const Kernels kNeon = {"neon", neon::quantize, neon::codes, neon::masked_codes, neon::floats, neon::mask, neon::norm, neon::gate, neon::attend,
                                 neon::keep, neon::attend_kept};

}  // namespace slimformer
