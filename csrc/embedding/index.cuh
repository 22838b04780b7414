// SPDX-License-Identifier: MIT
#pragma once

#include "embedding/problem.h"

namespace transformer_kernels::cuda {

// The index of a token, unchecked: it may have any value.
__device__ __forceinline__ std::int64_t index_of(const EmbeddingIndices& indices,
                                                 std::int64_t tokens, std::uint32_t token) {
  const std::uint32_t i =
      indices.period == tokens ? token : token % static_cast<std::uint32_t>(indices.period);
  if (indices.data == nullptr) return indices.first + i;
  return indices.is_int64 ? static_cast<const std::int64_t*>(indices.data)[i]
                          : static_cast<const std::int32_t*>(indices.data)[i];
}

__device__ __forceinline__ bool is_row(std::int64_t index, std::int64_t rows) {
  return static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(rows);
}

}  // namespace transformer_kernels::cuda
