// SPDX-License-Identifier: MIT
// Softmax over narrow rows that are not 16-byte aligned.
#pragma once

#include "softmax/row_softmax.h"

namespace transformer_kernels::cuda {

// Run the problem where a plan of softmax_chunk_plan.h is meant for it; false, and nothing done,
// where none is.
bool softmax_forward_in_chunks(const char* op, const Context& context,
                               const SoftmaxForwardProblem& problem);
bool softmax_backward_in_chunks(const char* op, const Context& context,
                                const SoftmaxBackwardProblem& problem);

}  // namespace transformer_kernels::cuda
