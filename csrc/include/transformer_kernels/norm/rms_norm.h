// SPDX-License-Identifier: MIT
// Root-mean-square normalisation over the last dimension (Zhang and Sennrich 2019,
// arXiv:1910.07467), optionally of the sum of two tensors.
//
//   s    = x + residual                      (s = x where there is no residual)
//   rstd = 1 / sqrt(sum(s^2) / C + eps)
//   y    = s * rstd * w + bias               w = weight, 1 + weight, or 1
//
// Shapes, dtypes, aliasing, accumulation and determinism are those of layer_norm.h.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct RmsNormForward {
  TensorView x;
  TensorView residual{};  // optional; needs `sum`
  TensorView weight{};    // optional
  TensorView bias{};      // optional
  TensorView y;
  TensorView sum{};   // x + residual; present exactly when `residual` is
  TensorView rstd{};  // optional, for the backward pass
  double eps = 1e-6;
  bool zero_centered_weight = false;  // scale by 1 + weight
};

struct RmsNormBackward {
  TensorView dy;
  TensorView dsum{};  // optional: gradient that reaches the sum by another path; added to dx
  TensorView x;       // what was normalised: x, or the stored sum
  TensorView rstd;
  TensorView weight{};   // optional
  TensorView dx;         // gradient of x, and of the residual as well
  TensorView dweight{};  // optional
  TensorView dbias{};    // optional
  bool zero_centered_weight = false;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void rms_norm_forward(const Context& context, const RmsNormForward& arguments);
TFK_API void rms_norm_backward(const Context& context, const RmsNormBackward& arguments);

}  // namespace transformer_kernels
