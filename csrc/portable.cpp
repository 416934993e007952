// Every operation lane by lane: for processors without an instruction set of their own here, and as the reference.
#include <type_traits>

#include "vector_portable.h"

namespace slimformer {
namespace portable {
#include "kernels.inl"
}  // namespace portable

extern const Kernels kPortable = {"portable", portable::quantize, portable::codes, portable::masked_codes, portable::floats, portable::mask, portable::norm, portable::gate, portable::attend,
                                 portable::keep, portable::attend_kept};

}  // namespace slimformer
