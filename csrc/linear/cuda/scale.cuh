// SPDX-License-Identifier: MIT
// Scales of quantised weights, in any of their dtypes.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cuda {

// A scale as it is stored, so that its load may overlap other work.
__device__ __forceinline__ std::uint32_t scale_bits(const void* scale, DType dtype) {
  if (dtype == DType::kFloat32) return *static_cast<const std::uint32_t*>(scale);
  return *static_cast<const std::uint16_t*>(scale);
}

__device__ __forceinline__ float scale_of(std::uint32_t bits, DType dtype) {
  if (dtype == DType::kFloat32) return __uint_as_float(bits);
  if (dtype == DType::kBFloat16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ float scale_at(const void* scales, DType dtype, std::int64_t index) {
  const std::int64_t bytes = dtype == DType::kFloat32 ? 4 : 2;
  return scale_of(scale_bits(static_cast<const std::byte*>(scales) + index * bytes, dtype), dtype);
}

}  // namespace transformer_kernels::cuda
