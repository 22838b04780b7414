// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/rms_norm.h"

#include "core/dispatch.h"
#include "norm/rms_norm_backends.h"

namespace transformer_kernels {

void rms_norm_forward(const Context& context, const RmsNormForward& a) {
  const TensorView absent;
  const NormForwardProblem problem =
      check_norm_forward(context.device, {"rms_norm", false, a.x, a.residual, a.weight, a.bias, a.y,
                                          a.sum, absent, a.rstd, a.eps, a.zero_centered_weight});
  if (problem.rows == 0) return;
  dispatch_device(
      "rms_norm", context.device, [&] { cpu::rms_norm_forward(context, problem); },
      [&] {
        if constexpr (kHasCuda) cuda::rms_norm_forward(context, problem);
      });
}

void rms_norm_backward(const Context& context, const RmsNormBackward& a) {
  const TensorView absent;
  const NormBackwardProblem problem = check_norm_backward(
      context.device, {"rms_norm", false, a.dy, a.dsum, a.x, absent, a.rstd, a.weight, a.dx,
                       a.dweight, a.dbias, a.zero_centered_weight});
  dispatch_device(
      "rms_norm", context.device, [&] { cpu::rms_norm_backward(context, problem); },
      [&] {
        if constexpr (kHasCuda) cuda::rms_norm_backward(context, problem);
      });
}

}  // namespace transformer_kernels
