// SPDX-License-Identifier: MIT
// The statistics of a row of scores, which the backward passes of all CUDA engines read beside its
// operands, and the gradients of sinks, which follow from them alone. Host side.
#pragma once

#include "attention/problem.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels::cuda {

// The statistics of a query of a head, aligned for one load.
template <class A>
struct alignas(2 * sizeof(A)) RowStatistics {
  // lse in units of Exponent; infinite where the query saw nothing: its powers are 0. Of far rows
  // it only tells that they are: see FarRow.
  A origin;
  A delta;  // sum(out * dout) - dlse
};

// The statistics of all rows, in the order of lse and in accumulation precision.
void make_row_statistics(const Context& context, const AttentionBackwardProblem& p,
                         void* statistics);

// dsinks, of what make_row_statistics() makes.
void make_sink_gradients(const Context& context, const AttentionBackwardProblem& p,
                         const void* statistics);

// dsinks, of statistics in blocks of rows: so many origins, then as many times what delta is
// `delta_factor` times. Heads have `head_blocks` of them, in each batch of the tensors. Rows that
// do not exist have an infinite origin.
inline constexpr int kStatisticsBlock = 64;
void make_sink_gradients(const Context& context, const AttentionBackwardProblem& p,
                         const float* statistics, int head_blocks, float delta_factor);

}  // namespace transformer_kernels::cuda
