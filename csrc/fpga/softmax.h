// SPDX-License-Identifier: MIT
// Softmax of rows on an array. The host subtracts each row's maximum, so that 16 bits hold every
// exponential above 2^-32 of the largest; the array computes exponentials, their sum and the
// quotients.
#pragma once

#include <cstdint>
#include <span>

#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::fpga {

// `scores` are rows of `cols` in natural logarithms, -inf where masked; `out` are probabilities,
// and 0 in a row of nothing but -inf. Throws Error where one is NaN or +inf. Takes the array for
// the time of the call.
void softmax(Array& array, std::span<const float> scores, std::int64_t cols, std::span<float> out);

}  // namespace transformer_kernels::fpga
