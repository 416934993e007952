// Which instruction sets this machine has, and what they need.
#include <cstring>

#include "kernels.h"

namespace slimformer {

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
#endif

namespace {

// Fastest first.
const Kernels* const* known() {
    static const Kernels* const all[] = {
#if defined(__x86_64__)
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kAvx2 : nullptr,
#endif
        &kPortable,
    };
    return all;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
    for (const Kernels* const* each = known();; each++) {
        if (*each != nullptr && (name == nullptr || std::strcmp((*each)->name, name) == 0)) return *each;
        if (*each == &kPortable) return nullptr;
    }
}

}  // namespace slimformer
