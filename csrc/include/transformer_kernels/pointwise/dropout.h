// SPDX-License-Identifier: MIT
// Dropout (Srivastava et al. 2014), alone and between a bias and a residual.
//
//   dropout             y = dropped ? 0 : x * scale
//   bias_dropout_add    y = (dropped ? 0 : (x + bias) * scale) + residual       (absent bias: 0)
//   backward            dx = dropped ? 0 : dy * scale,  dbias = sum_rows dx,  dresidual = dy
//
// Element e is dropped where its 16 random bits are below t = round(p * 65536), and
// scale = 65536 / (65536 - t) makes the mean exact. With p below 2^-17 nothing is dropped, which
// the dispatch log says. The bits are number e % 8 of Philox4x32-10 with key seed[0] and counter (e
// / 8, seed[1]), e = row * C + column: they depend on the seed and the shape alone, not on the
// device, threads or strides, and the backward pass draws them again.
//
// Shapes: x, residual, y and their gradients are (..., C) with a last stride of 1 and leading
// dimensions that step by one common row stride; bias and dbias are (C,), contiguous; seed is (2,),
// contiguous, and may be absent where nothing is drawn (p = 0 and p = 1).
// Dtypes: x is float64, float32, float16 or bfloat16, and all matrices have its dtype; bias and
// dbias are both of x's dtype or both float32; seed is int64, on the CPU or beside x. Arithmetic is
// in float32 (float64 for float64). Aliasing: an output may be exactly the memory of one of the
// inputs of its shape; other than that outputs overlap neither inputs nor each other. dbias is a
// sum in an order that depends on the shape and the alignment alone.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct DropoutForward {
  TensorView x;
  TensorView seed{};
  double p = 0;  // 0 to 1
  TensorView y;
};

struct DropoutBackward {
  TensorView dy;
  TensorView seed{};
  double p = 0;
  TensorView dx;
};

struct BiasDropoutAddForward {
  TensorView x;
  TensorView bias{};  // optional
  TensorView residual;
  TensorView seed{};
  double p = 0;
  TensorView y;
};

struct BiasDropoutAddBackward {
  TensorView dy;
  TensorView seed{};
  double p = 0;
  TensorView dx;
  TensorView dbias{};  // optional
};

// Throw Error, with nothing written, when an argument does not meet the contract above.
TFK_API void dropout_forward(const Context& context, const DropoutForward& arguments);
TFK_API void dropout_backward(const Context& context, const DropoutBackward& arguments);
TFK_API void bias_dropout_add_forward(const Context& context,
                                      const BiasDropoutAddForward& arguments);
TFK_API void bias_dropout_add_backward(const Context& context,
                                       const BiasDropoutAddBackward& arguments);

}  // namespace transformer_kernels
