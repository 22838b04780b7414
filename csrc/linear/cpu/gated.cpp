// SPDX-License-Identifier: MIT
#include "core/cpu/scratch.h"
#include "linear/gated_problem.h"

namespace transformer_kernels::cpu {

void gated_linear_forward(const Context& context, const GatedLinearProblem& p) {
  const AlignedScratch memory(context, bytes_in_three(p));
  run_in_three(context, p, memory.data(), linear_forward, pointwise_forward);
}

// The gradient of h, and in its place that of the gate.
void linear_dgated(const Context& context, const LinearDgatedProblem& p) {
  linear_backward(context, p.product());
  pointwise_backward(context, p.slope());
}

}  // namespace transformer_kernels::cpu
