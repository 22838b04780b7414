// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/rms_norm.h"

#include "norm/row_norm.h"

namespace transformer_kernels {

void rms_norm_forward(const Context& context, const RmsNormForward& a) {
  const TensorView absent;
  const NormForwardProblem problem =
      check_norm_forward(context.device, {"rms_norm", false, a.x, a.residual, a.weight, a.bias, a.y,
                                          a.sum, absent, a.rstd, a.eps, a.zero_centered_weight});
  run_norm(context, problem);
}

void rms_norm_backward(const Context& context, const RmsNormBackward& a) {
  const TensorView absent;
  const NormBackwardProblem problem = check_norm_backward(
      context.device, {"rms_norm", false, a.dy, a.dsum, a.x, absent, a.rstd, a.weight, a.dx,
                       a.dweight, a.dbias, a.zero_centered_weight});
  run_norm(context, problem);
}

}  // namespace transformer_kernels
