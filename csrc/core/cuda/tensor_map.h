// SPDX-License-Identifier: MIT
// Tensor maps: the description of a tensor in global memory that TMA reads.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cuda {

// Dimensions from the closest on. The first is contiguous, and a box has 128 or 64 bytes of it,
// which come to shared memory under the swizzle of as many bytes. Those from `rank` on are of
// size 1.
struct TensorMapLayout {
  DType dtype;
  void* data;
  std::array<std::int64_t, 5> sizes;
  std::array<std::int64_t, 4> strides;  // of dimensions 1 to 4, in elements
  std::array<int, 5> box;
  int rank = 5;
  // Whether L2 fetches 256 bytes where a box has 128: its neighbours in a line are read soon.
  bool is_promoted = true;
};

// TMA's own conditions: addresses and strides in steps of 16 bytes, a size below 2^32.
bool fits_tensor_map(const TensorMapLayout& layout);

CUtensorMap encode_tensor_map(const char* op, const TensorMapLayout& layout);

}  // namespace transformer_kernels::cuda
