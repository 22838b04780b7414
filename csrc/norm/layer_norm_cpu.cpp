// SPDX-License-Identifier: MIT
#include "norm/layer_norm_backends.h"
#include "norm/row_norm_cpu.h"

namespace transformer_kernels::cpu {

void layer_norm_forward(const Context& context, const NormForwardProblem& problem) {
  norm_forward("layer_norm", context, problem);
}

void layer_norm_backward(const Context& context, const NormBackwardProblem& problem) {
  norm_backward("layer_norm", context, problem);
}

}  // namespace transformer_kernels::cpu
