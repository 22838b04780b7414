// SPDX-License-Identifier: MIT
// Calls that ask whether an op takes its arguments, and compute nothing.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels {

// A parallel loop that runs no iteration. An op whose context has it checks its arguments, as any
// call does, and returns. Views need no memory then, but for the integers of the CPU that a check
// reads: offsets of sequences, positions, seeds.
TFK_API void checks_only(void* user, std::int64_t count, std::int64_t grain, RangeBody body,
                         void* argument);

}  // namespace transformer_kernels
