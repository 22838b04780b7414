// SPDX-License-Identifier: MIT
#include "norm/norm_cuda.h"

namespace transformer_kernels::cuda {

void norm_forward(const Context& context, const NormForwardProblem& p) {
  p.center ? norm_forward<true>(p.op, context, p) : norm_forward<false>(p.op, context, p);
}

void norm_backward(const Context& context, const NormBackwardProblem& p) {
  p.center ? norm_backward<true>(p.op, context, p) : norm_backward<false>(p.op, context, p);
}

}  // namespace transformer_kernels::cuda
