// SPDX-License-Identifier: MIT
// Quantises the weight of a linear layer for quantized_linear.h, by rounding to nearest.
//
//   packed(n, k) = round(weight(n, k) / scales(n, k / group)), from -8 to 7, or from -128 to 127
//
// A group is K / G neighbouring numbers of a row. Its scale maps its largest magnitude to 7, or to
// 127 with 8 bits, so that each number is off by at most half of its group's scale; a scale of 16
// bits that would be rounded down so far that this number no longer fits is rounded up. The scale
// of a group of zeros is 0. Numbers half way between two are rounded to the even one.
//
// Shapes: weight is (N, K), scales (N, G), G divides K. packed is (N, K) and int8, or (N, K / 2)
// and uint8 with 4 bits a number, as in quantized_linear.h. Each has a last stride of 1. Dtypes:
// weight is float64, float32, float16 or bfloat16 and finite; scales is float32, float16 or
// bfloat16. A group for whose numbers that dtype has no scale, as they are too large, or too small
// without being 0, is refused. All lie on the CPU. Aliasing: results overlap neither weight nor
// each other.
#pragma once

#include "transformer_kernels/api.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct QuantizeWeight {
  TensorView weight;
  TensorView packed;
  TensorView scales;
};

// Throws Error, with nothing written, when an argument does not meet the contract above.
TFK_API void quantize_weight(const Context& context, const QuantizeWeight& arguments);

}  // namespace transformer_kernels
