// SPDX-License-Identifier: MIT
// A linear layer whose weight is stored in 8 or 4 bits a number, with a scale for each group of
// numbers.
//
//   w(n, k) = packed(n, k) * scales(n, k / group)      y = x w^T + bias
//
//   dx = dy w,   dbias = the sum of the rows of dy
//
// Shapes: x is (..., K), bias (N,), y (..., N), scales (N, G), where G divides K and a group is K /
// G numbers. packed is (N, K) with 8 bits. With 4 bits it is (N, K / 2): byte i of a row holds
// column 2 i in its low nibble and column 2 i + 1 in its high one. dy and dx are like y and x. Any
// of the sizes may be 0. Strides: x, y and their gradients have a last stride of 1 and leading
// dimensions that step by one common row stride; packed and scales have a last stride of 1; bias
// and dbias are contiguous. Dtypes: x is float64, float32, float16 or bfloat16; y, dy and dx have
// the dtype of x; bias and dbias have it or are float32. packed is int8, or uint8 with 4 bits,
// where each nibble is a signed number in two's complement; scales is float32, float16 or bfloat16.
// Sums are in float32 (float64 for float64), in an order that the sizes decide. Aliasing: outputs
// overlap neither inputs nor each other.
//
// w is computed in float32. It is then rounded to the dtype of x with more than 16 rows, in the
// backward pass, and where a group is no multiple of 32 numbers; on CUDA also where x is not a
// 16-bit dtype, below compute capability 8.0, where a group is no multiple of 64 numbers or a row
// has 1024 groups or more, and where rows of x or packed are not 16-byte aligned. On CUDA, an
// infinite bfloat16 in x, or one above 2^120, gives NaN where few rows multiply 4-bit weights.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct QuantizedLinearForward {
  TensorView x;
  TensorView packed;
  TensorView scales;
  TensorView bias{};  // optional
  TensorView y;
};

// Each output is optional.
struct QuantizedLinearBackward {
  TensorView dy;
  TensorView packed;
  TensorView scales;
  TensorView dx{};
  TensorView dbias{};
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void quantized_linear_forward(const Context& context,
                                      const QuantizedLinearForward& arguments);
TFK_API void quantized_linear_backward(const Context& context,
                                       const QuantizedLinearBackward& arguments);

}  // namespace transformer_kernels
