// SPDX-License-Identifier: MIT
// Normalisation over the last dimension, optionally of the sum of two tensors (the "add + norm" of
// a pre-norm residual block): layer normalisation (Ba, Kiros and Hinton 2016, arXiv:1607.06450) and
// root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467).
//
//   s    = x + residual                      (s = x where there is no residual)
//   mean = sum(s) / C                        (rms_norm: 0)
//   rstd = 1 / sqrt(sum((s - mean)^2) / C + eps)
//   y    = (s - mean) * rstd * w + bias      w = weight, 1 + weight, or 1
//
// bias_dropout_add_* normalise s = dropout(x + x_bias) + residual, where dropout and its seed are
// those of pointwise/dropout.h; dresidual is the gradient of s, and dx and dx_bias follow from it.
//
// Shapes: x, residual, y, sum, dy, dsum, dx are (..., C) with a last stride of 1 and leading
// dimensions that step by one common row stride; weight, bias, dweight, dbias are (C,) and
// contiguous; mean and rstd are contiguous with one element a row.
// Dtypes: x is float64, float32, float16 or bfloat16; residual, y, sum and their gradients are of
// the same dtype; weight, bias and their gradients are all of x's dtype or all float32; mean and
// rstd are float32, float64 where x is. Accumulation is in float32 (float64 for float64).
// bias_dropout_add_* also take x of float16 or bfloat16 beside a residual of float32, as autocast
// has them: y, dy and dx are then of x's dtype, all else is float32.
// The sum is rounded to its dtype before it is normalised, so y belongs to the sum that is stored.
// Outputs may not overlap inputs, except that dx may be dy's memory and sum may be residual's.
// Results do not depend on the number of threads or on timing: two calls give the same bits.
#pragma once

#include <optional>

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct NormForward {
  TensorView x;
  TensorView residual{};  // optional; needs `sum`
  TensorView weight{};    // optional
  TensorView bias{};      // optional
  TensorView y;
  TensorView sum{};                   // x + residual; present exactly when `residual` is
  TensorView mean{};                  // optional, for layer_norm's backward pass; rms_norm has none
  TensorView rstd{};                  // optional, for the backward pass
  std::optional<double> eps{};        // default: 1e-5 in layer_norm, 1e-6 in rms_norm
  bool zero_centered_weight = false;  // scale by 1 + weight
};

struct BiasDropoutAddNormForward : NormForward {
  TensorView x_bias{};  // optional; (C,), of x's dtype or float32 whatever weight and bias are
  TensorView seed{};
  double p = 0;  // 0 to 1
};

struct NormBackward {
  TensorView dy;
  TensorView dsum{};  // optional: gradient that reaches the sum by another path; added to dx
  TensorView x;       // what was normalised: x, or the stored sum
  TensorView mean{};  // of layer_norm
  TensorView rstd;
  TensorView weight{};   // optional
  TensorView dx;         // gradient of x, and of the residual as well
  TensorView dweight{};  // optional
  TensorView dbias{};    // optional
  bool zero_centered_weight = false;
};

// dx is the gradient of x, which dropout has scaled. It may be dy's memory; dresidual may not, and
// dx and dresidual do not overlap.
struct BiasDropoutAddNormBackward : NormBackward {
  TensorView dresidual;
  TensorView dx_bias{};  // optional
  TensorView seed{};
  double p = 0;
};

// Throw Error, with nothing written, when an argument does not meet the contract above.
TFK_API void layer_norm_forward(const Context& context, const NormForward& arguments);
TFK_API void layer_norm_backward(const Context& context, const NormBackward& arguments);
TFK_API void rms_norm_forward(const Context& context, const NormForward& arguments);
TFK_API void rms_norm_backward(const Context& context, const NormBackward& arguments);
TFK_API void bias_dropout_add_layer_norm_forward(const Context& context,
                                                 const BiasDropoutAddNormForward& arguments);
TFK_API void bias_dropout_add_layer_norm_backward(const Context& context,
                                                  const BiasDropoutAddNormBackward& arguments);
TFK_API void bias_dropout_add_rms_norm_forward(const Context& context,
                                               const BiasDropoutAddNormForward& arguments);
TFK_API void bias_dropout_add_rms_norm_backward(const Context& context,
                                                const BiasDropoutAddNormBackward& arguments);

}  // namespace transformer_kernels
