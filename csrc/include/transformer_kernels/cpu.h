// SPDX-License-Identifier: MIT
// The instruction sets that the CPU kernels can use.
#pragma once

#include <string>
#include <vector>

#include "transformer_kernels/api.h"

namespace transformer_kernels {

// The names of the sets that both this build and this processor have, the best last.
TFK_API std::vector<std::string> cpu_instruction_sets();

// The name of the set in use: the best, or the one that TFK_CPU_ISA asks for. Throws Error where
// that is none of cpu_instruction_sets().
TFK_API std::string cpu_instruction_set();

}  // namespace transformer_kernels
