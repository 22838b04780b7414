// SPDX-License-Identifier: MIT
// Which instruction sets the kernels for CPUs have.
#pragma once

#include <string>
#include <vector>

#include "transformer_kernels/api.h"

namespace transformer_kernels {

// The names of those that both this build and this processor have, the best last.
TFK_API std::vector<std::string> cpu_instruction_sets();

// The name of the one in use: the best, or what TFK_CPU_ISA asks for. Throws Error where that is
// none of cpu_instruction_sets().
TFK_API std::string cpu_instruction_set();

}  // namespace transformer_kernels
