// SPDX-License-Identifier: MIT
#include "norm/rms_norm_backends.h"
#include "norm/row_norm_cpu.h"

namespace transformer_kernels::cpu {

void rms_norm_forward(const Context& context, const NormForwardProblem& problem) {
  norm_forward("rms_norm", context, problem);
}

void rms_norm_backward(const Context& context, const NormBackwardProblem& problem) {
  norm_backward("rms_norm", context, problem);
}

}  // namespace transformer_kernels::cpu
