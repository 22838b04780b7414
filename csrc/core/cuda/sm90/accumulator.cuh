// SPDX-License-Identifier: MIT
// The rows and columns of a wgmma result that a thread holds.
#pragma once

namespace transformer_kernels::cuda {

// A thread of a warpgroup, whose result has 64 rows: of each eight columns it holds two neighbours,
// in two rows that are 8 apart.
struct AccumulatorThread {
  int warp;  // of the warpgroup
  int lane;

  __device__ __forceinline__ int row(int half) const { return 16 * warp + lane / 4 + 8 * half; }
  __device__ __forceinline__ int col(int eight) const { return 8 * eight + lane % 4 * 2; }

  // The number of the sum of row(half) and col(eight); the next sum is its neighbour's.
  static constexpr __device__ int sum(int half, int eight) { return 4 * eight + 2 * half; }
};

}  // namespace transformer_kernels::cuda
