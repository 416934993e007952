// The instruction sets that there are kernels for. Not for the files of a set itself: what they include is compiled with
// instructions that a machine may lack.
#pragma once

#include <vector>

#include "kernels.h"

namespace slimformer {

struct InstructionSet {
    const Kernels* kernels;
    bool is_here;  // whether this machine has it
};

// All that were compiled for this kind of processor, fastest first, the portable one last.
const std::vector<InstructionSet>& instruction_sets();

// The fastest set that this machine has, or the one of a name; null where it has none such.
const Kernels* find_kernels(const char* name);

}  // namespace slimformer
