// SPDX-License-Identifier: MIT
#include "attention/tensor_core_float32.h"
#include "attention/tensor_core_launch.cuh"

namespace transformer_kernels::cuda {

void run_tensor_core_float32(const Context& context, const AttentionForwardProblem& p) {
  run_tensor_core_forward<float>(context, p);
}

void run_tensor_core_float32(const Context& context, const AttentionBackwardProblem& p) {
  run_tensor_core_backward<float>(context, p);
}

}  // namespace transformer_kernels::cuda
