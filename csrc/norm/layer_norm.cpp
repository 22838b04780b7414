// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/layer_norm.h"

#include "norm/row_norm.h"

namespace transformer_kernels {

void layer_norm_forward(const Context& context, const LayerNormForward& a) {
  const NormForwardProblem problem = check_norm_forward(
      context.device, {"layer_norm", true, a.x, a.residual, a.weight, a.bias, a.y, a.sum, a.mean,
                       a.rstd, a.eps, a.zero_centered_weight});
  run_norm(context, problem);
}

void layer_norm_backward(const Context& context, const LayerNormBackward& a) {
  const NormBackwardProblem problem = check_norm_backward(
      context.device, {"layer_norm", true, a.dy, a.dsum, a.x, a.mean, a.rstd, a.weight, a.dx,
                       a.dweight, a.dbias, a.zero_centered_weight});
  run_norm(context, problem);
}

}  // namespace transformer_kernels
