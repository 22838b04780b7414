// SPDX-License-Identifier: MIT
// A linear layer whose weight is kept in 8 or 4 bits a number, with a scale for each group of them.
//
//   w(n, k) = packed(n, k) * scales(n, k / group)      y = x w^T + bias
//
//   dx = dy w,   dbias = the sum of the rows of dy
//
// Shapes: x is (..., K), bias (N,), y (..., N), scales (N, G), where G divides K and a group is K /
// G numbers; packed is (N, K) with 8 bits, and with 4 bits (N, K / 2), where byte i of a row holds
// column 2 i in its low nibble and column 2 i + 1 in its high one. dy and dx are like y and x. Any
// of the sizes may be 0.
// Strides: rows of x, y and their gradients have a last stride of 1 and leading dimensions that
// step by one common row stride; rows of packed and scales have a last stride of 1; bias and dbias
// are contiguous. Dtypes: x is float64, float32, float16 or bfloat16, y, dy and dx of the same,
// bias and dbias of that or float32. packed is int8, or uint8 with 4 bits, of which each nibble is
// a number of two's complement; scales is float32, float16 or bfloat16. w is computed in float32;
// of more than 16 rows, in the backward pass and of groups that are no multiple of 32 numbers it is
// then rounded to the dtype of x, on CUDA also of other dtypes than 16-bit ones, below compute
// capability 8.0, where groups are no multiple of 64 numbers or there are 1024 and more of them in
// a row, and where rows of x or packed are not 16-byte aligned. Sums are of float32 (float64 for
// float64), in an order that the sizes decide. Aliasing: outputs overlap neither inputs nor each
// other. On CUDA an x of bfloat16 that is infinite, or above 2^120, gives NaN where few rows
// multiply 4 bits.
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

// Outputs are optional, each for itself.
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
