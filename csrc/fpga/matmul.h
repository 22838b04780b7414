// SPDX-License-Identifier: MIT
// Products of int8 rows on an array. The host adds up contractions longer than its head dim, and
// cuts outputs that exceed its buffers into parts.
#pragma once

#include <cstdint>
#include <span>

#include "fpga/quantize.h"
#include "transformer_kernels/fpga/array.h"

namespace transformer_kernels::fpga {

// sums[i, n] = sum over k of x[i, k] * weight[n, k]; rows of x and of weight are of one width, a
// multiple of the array's head dim. Takes the array for the time of the call. `useful` columns of
// the width are not padding.
void matmul(Array& array, const Int8Rows& x, const Int8Rows& weight, std::int64_t useful,
            std::span<std::int64_t> sums);

}  // namespace transformer_kernels::fpga
