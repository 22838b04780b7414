// SPDX-License-Identifier: MIT
#include "norm/layer_norm_backends.h"
#include "norm/row_norm_backward.cuh"
#include "norm/row_norm_forward.cuh"

namespace transformer_kernels::cuda {

void layer_norm_forward(const Context& context, const NormForwardProblem& problem) {
  norm_forward<true>("layer_norm", context, problem);
}

void layer_norm_backward(const Context& context, const NormBackwardProblem& problem) {
  norm_backward<true>("layer_norm", context, problem);
}

}  // namespace transformer_kernels::cuda
