// SPDX-License-Identifier: MIT
#include "norm/rms_norm_backends.h"
#include "norm/row_norm_backward.cuh"
#include "norm/row_norm_forward.cuh"

namespace transformer_kernels::cuda {

void rms_norm_forward(const Context& context, const NormForwardProblem& problem) {
  norm_forward<false>("rms_norm", context, problem);
}

void rms_norm_backward(const Context& context, const NormBackwardProblem& problem) {
  norm_backward<false>("rms_norm", context, problem);
}

}  // namespace transformer_kernels::cuda
