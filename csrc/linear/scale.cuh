// SPDX-License-Identifier: MIT
// Scales of quantised weights, of any of their dtypes.
#pragma once

#include "core/cuda/pack.cuh"
#include "transformer_kernels/tensor.h"

namespace transformer_kernels::cuda {

__device__ __forceinline__ float scale_at(const void* scales, DType dtype, std::int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(scales)[index];
  if (dtype == DType::kFloat16) return widen(static_cast<const Half*>(scales)[index]);
  return widen(static_cast<const BFloat16*>(scales)[index]);
}

}  // namespace transformer_kernels::cuda
