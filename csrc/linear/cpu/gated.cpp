// SPDX-License-Identifier: MIT
#include "core/cpu/scratch.h"
#include "linear/gated_problem.h"

namespace transformer_kernels::cpu {

void gated_linear_forward(const Context& context, const GatedLinearProblem& p) {
  const AlignedScratch memory(context, bytes_in_three(p));
  run_in_three(context, p, memory.data(), linear_forward, pointwise_forward);
}

void linear_dgated(const Context& context, const LinearDgatedProblem& p) {
  const AlignedScratch memory(context, p.bytes_of_dh());
  const Rows dh = p.place_of_dh(memory.data());
  linear_backward(context, p.product_to(dh));
  pointwise_backward(context, p.slope_times(dh));
}

}  // namespace transformer_kernels::cpu
