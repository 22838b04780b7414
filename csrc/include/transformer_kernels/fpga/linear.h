// SPDX-License-Identifier: MIT
// A linear layer whose products run in int8 on the FPGA array that the context names.
//
//   y[i, n] = sx[i] * sw[n] * sum_k xq[i, k] * wq[n, k] + bias[n]
//
// xq and wq are the rows of x and weight in int8. Each row has its own scale, sx or sw, which makes
// its largest magnitude 127. Sums of int8 products are exact.
//
// Shapes: x and y are (..., K) and (..., N) with a last stride of 1 and leading dimensions that
// step by one common row stride; weight is (N, K) with a last stride of 1; bias is (N,),
// contiguous. Dtypes: all float64, float32, float16 or bfloat16, and the same. Elements are finite.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::fpga {

struct LinearForward {
  TensorView x;
  TensorView weight;
  TensorView bias{};  // optional
  TensorView y;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void linear_forward(const Context& context, const LinearForward& arguments);

}  // namespace transformer_kernels::fpga
