// SPDX-License-Identifier: MIT
#include "core/cpu/scratch.h"
#include "linear/gated_problem.h"

namespace transformer_kernels::cpu {

void gated_linear_forward(const Context& context, const GatedLinearProblem& p) {
  const AlignedScratch memory(context, bytes_in_three(p));
  run_in_three(context, p, memory.data(), linear_forward, pointwise_forward);
}

}  // namespace transformer_kernels::cpu
