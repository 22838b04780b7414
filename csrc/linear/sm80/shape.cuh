// SPDX-License-Identifier: MIT
// The tile that a CTA of Ampere's GEMM (gemm.cuh) multiplies.
#pragma once

#include "core/cuda/sm80/operand.cuh"
#include "linear/cuda/units.cuh"

namespace transformer_kernels::cuda::ampere {

// A tile of kProducts products of the same a: each has kOutCols columns of it. Each warp has 64
// rows and its share of the columns of every product. kOther: a is kept with its rows together, b
// with its columns.
template <Major kMajorA_, Major kMajorB_, int kProducts_ = 1>
struct Shape {
  static constexpr Major kMajorA = kMajorA_;
  static constexpr Major kMajorB = kMajorB_;
  static constexpr int kProducts = kProducts_;

  static constexpr int kWarpsDown = 2;
  static constexpr int kWarpsAcross = 2;
  static constexpr int kThreads = kWarpsDown * kWarpsAcross * kWarp;
  static constexpr int kWarpRows = 64;
  static constexpr int kWarpCols = 64;  // of all products
  static constexpr int kWarpOutCols = kWarpCols / kProducts;
  static constexpr int kRows = kWarpsDown * kWarpRows;
  static constexpr int kOutCols = kWarpsAcross * kWarpOutCols;

  static constexpr int kBlock = 32;  // terms of a stage
  static constexpr int kStages = 3;  // so that two CTAs fit the 100 KB of sm_86, sm_89 and sm_120
  static constexpr int kCtas = 2;    // an SM: one multiplies under the epilogue of the other

  template <class T>
  using BlockOfA = OperandBlock<T, kMajorA, kRows, kBlock>;
  template <class T>
  using BlockOfB = OperandBlock<T, kMajorB, kOutCols, kBlock>;  // of one product

  using Sums = Fragment<kWarpRows, kWarpCols>;  // those of a product beside those of the next
};

// The place of a warp in its tile, as row and column of the result.
template <class Shape>
__device__ __forceinline__ MatrixOrigin origin_of_warp(TilePlace tile) {
  const int warp = Lane().warp;
  return {tile.col * Shape::kOutCols + warp % Shape::kWarpsAcross * Shape::kWarpOutCols,
          tile.row * Shape::kRows + warp / Shape::kWarpsAcross * Shape::kWarpRows};
}

}  // namespace transformer_kernels::cuda::ampere
