// SPDX-License-Identifier: MIT
// The backward pass of the norms over narrow rows that are not 16-byte aligned.
#pragma once

#include "norm/row_norm.h"

namespace transformer_kernels::cuda {

// Runs the problem where a plan of norm_chunk_plan.h is meant for it; false, and nothing done,
// where none is.
bool norm_backward_in_chunks(const char* op, const Context& context,
                             const NormBackwardProblem& problem);

}  // namespace transformer_kernels::cuda
