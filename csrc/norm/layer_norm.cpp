// SPDX-License-Identifier: MIT
#include "transformer_kernels/norm/layer_norm.h"

#include "core/dispatch.h"
#include "norm/layer_norm_backends.h"

namespace transformer_kernels {

void layer_norm_forward(const Context& context, const LayerNormForward& a) {
  const NormForwardProblem problem = check_norm_forward(
      context.device, {"layer_norm", true, a.x, a.residual, a.weight, a.bias, a.y, a.sum, a.mean,
                       a.rstd, a.eps, a.zero_centered_weight});
  if (problem.rows == 0) return;
  dispatch_device(
      "layer_norm", context.device, [&] { cpu::layer_norm_forward(context, problem); },
      [&] {
        if constexpr (kHasCuda) cuda::layer_norm_forward(context, problem);
      });
}

void layer_norm_backward(const Context& context, const LayerNormBackward& a) {
  const NormBackwardProblem problem = check_norm_backward(
      context.device, {"layer_norm", true, a.dy, a.dsum, a.x, a.mean, a.rstd, a.weight, a.dx,
                       a.dweight, a.dbias, a.zero_centered_weight});
  dispatch_device(
      "layer_norm", context.device, [&] { cpu::layer_norm_backward(context, problem); },
      [&] {
        if constexpr (kHasCuda) cuda::layer_norm_backward(context, problem);
      });
}

}  // namespace transformer_kernels
