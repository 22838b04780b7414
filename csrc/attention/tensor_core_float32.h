// SPDX-License-Identifier: MIT
// The tensor-core engine's kernels for float32, compiled beside those of 16 bits.
#pragma once

#include "attention/attention_problem.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels::cuda {

void run_tensor_core_float32(const Context& context, const AttentionForwardProblem& p);
void run_tensor_core_float32(const Context& context, const AttentionBackwardProblem& p);

}  // namespace transformer_kernels::cuda
