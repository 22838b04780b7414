// SPDX-License-Identifier: MIT
// The gradient of an additive bias, for engines with tensor cores: a pass of its own.
#pragma once

#include "attention/attention_problem.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels::cuda {

struct RowStatistics;

// What the tensor-core engine takes, but for the gradients of q, k and v. Statistics are those of
// the problem's rows, made here where null.
void run_bias_gradient(const Context& context, const AttentionBackwardProblem& p,
                       const RowStatistics* statistics = nullptr);

}  // namespace transformer_kernels::cuda
