// SPDX-License-Identifier: MIT
// A matrix whose elements are stored in 8 or 4 bits, beside the scales that give them their size.
#pragma once

#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

// Element (n, k) of N rows and K columns stands for value(n, k) * scales(n, k / group).
//
// Shapes: scales is (N, K / group); `group` divides K, and is K where a row has one scale. With 8
// bits values is (N, K); with 4 bits it is (N, K / 2) and K is even: byte i of a row holds column
// 2 i in its low nibble and column 2 i + 1 in its high one. Both have a last stride of 1.
// Dtypes: with 8 bits values is int8, float8_e4m3fn or float8_e5m2; with 4 bits it is uint8, and a
// nibble is a number of two's complement, from -8 to 7. scales is float32, float16 or bfloat16.
struct Quantized {
  TensorView values;
  TensorView scales;
  int group;
  int bits;

  constexpr std::int64_t rows() const { return values.sizes[0]; }
  constexpr std::int64_t cols() const { return values.sizes[1] * 8 / bits; }
};

}  // namespace transformer_kernels
