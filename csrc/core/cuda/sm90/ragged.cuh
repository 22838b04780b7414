// SPDX-License-Identifier: MIT
// Boxes of TMA that end where a part of a matrix's rows does: a sequence's, or a group's.
//
// TMA clips boxes where a tensor ends, but not where a part of it does. So a ragged map
// has two dimensions for rows: one of as many as a box has, which the box enters so
// late that it ends with the rows that exist, and one for where it stands.
#pragma once

#include "core/cuda/hopper.cuh"

namespace transformer_kernels::cuda {

// The first element of a box in a tensor of rank 3: one of matrices, or a ragged matrix.
struct CubeOrigin {
  int col;
  int row;
  int matrix;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ void cube_load(std::uint32_t destination, const CUtensorMap& map,
                                          CubeOrigin box, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3,%4,%5}], [%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(box.col), "r"(box.row), "r"(box.matrix)
      : "memory");
}

__device__ __forceinline__ void cube_store(const CUtensorMap& map, CubeOrigin box,
                                           std::uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2,%3,%4}], [%1];" ::"l"(&map),
      "r"(source), "r"(box.col), "r"(box.row), "r"(box.matrix)
      : "memory");
}

#endif  // sm_90

struct RaggedRows {
  int within;  // the coordinate in the dimension of a box's rows
  int place;   // in the other one
};

// Rows from `first` on, of which `left` exist, one at least.
template <int kBoxRows>
__device__ __forceinline__ RaggedRows ragged_rows(int first, int left) {
  const int exist = min(kBoxRows, left);
  return {kBoxRows - exist, first + exist};
}

}  // namespace transformer_kernels::cuda
