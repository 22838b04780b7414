// SPDX-License-Identifier: MIT
// Softmax and log-softmax over the last dimension, with the scale and the masks of attention.
//
//   z[j] = x[j] * scale + additive_mask[j], or -inf where the boolean or the causal mask is false
//   y[j] = exp(z[j] - max(z)) / sum_k exp(z[k] - max(z))            softmax
//   y[j] = z[j] - max(z) - log(sum_k exp(z[k] - max(z)))            log-softmax
//
// A row of which every element is masked gives 0 (softmax) or -inf (log-softmax), with gradient 0.
// Without a mask a row of nothing but -inf gives NaN; NaN in a row makes the whole row NaN.
//
// Shapes: x, y, dy, dx are (..., C) with a last stride of 1 and leading dimensions that step by one
// common row stride; mask has x's rank, each size is x's or the stride is 0, and the last stride is
// 1 or 0. The causal mask is over the last two dimensions (..., T, C) and aligned to their bottom
// right corner: query t sees key j where j <= t + C - T.
// Dtypes: x is float64, float32, float16 or bfloat16; y, dy, dx are of the same dtype; mask is bool
// (true: takes part), x's dtype or float32. Arithmetic is in float32 (float64 for float64).
// Outputs may not overlap inputs, except that dx may be dy's memory.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct SoftmaxForward {
  TensorView x;
  TensorView mask{};  // optional
  TensorView y;
  double scale = 1.0;
  bool causal = false;
  bool log = false;  // log-softmax
};

struct SoftmaxBackward {
  TensorView dy;
  TensorView y;  // what the forward pass returned
  TensorView dx;
  double scale = 1.0;
  bool masked = false;  // the forward pass had a mask or was causal
  bool log = false;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void softmax_forward(const Context& context, const SoftmaxForward& arguments);
TFK_API void softmax_backward(const Context& context, const SoftmaxBackward& arguments);

}  // namespace transformer_kernels
