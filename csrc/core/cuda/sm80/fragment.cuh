// SPDX-License-Identifier: MIT
// The results of mma.sync that a warp holds in registers.
#pragma once

#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// A warp's block of a product: kRows / 16 by kCols / 8 results of mma.
template <int kRows, int kCols>
struct Fragment {
  static constexpr int kTiles = kRows / 16;
  static constexpr int kSteps = kCols / 8;

  float at[kTiles][kSteps][4];

  __device__ __forceinline__ void clear() {
    for_each([](float& value, int, int) { value = 0; });
  }
  __device__ __forceinline__ float& operator()(int slot, int col) {
    return at[slot / 2][col / 8][slot % 2 * 2 + col % 2];
  }
  // All but the first step's columns move one step to the front.
  __device__ __forceinline__ void shift() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 1; n < kSteps; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[m][n - 1][e] = at[m][n][e];
      }
    }
  }
  // body(element, its row slot, its column); the lane's own rows and columns come on top, see Lane.
  template <class Body>
  __device__ __forceinline__ void for_each(Body&& body) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) body(at[m][n][e], 2 * m + e / 2, n * 8 + e % 2);
      }
    }
  }
};

// The rows and columns of a fragment that a lane has.
struct Lane {
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int warp = static_cast<int>(threadIdx.x) / kWarp;

  __device__ __forceinline__ int row(int slot) const { return slot * 8 + lane / 4; }
  __device__ __forceinline__ int col() const { return lane % 4 * 2; }
};

}  // namespace transformer_kernels::cuda
