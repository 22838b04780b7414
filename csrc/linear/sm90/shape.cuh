// SPDX-License-Identifier: MIT
// The tile that a warpgroup of Hopper's GEMM (gemm.cuh) multiplies.
#pragma once

#include "core/cuda/wgmma.cuh"
#include "linear/cuda/units.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kGemmWarps = 4;  // of a warpgroup

// A tile of kProducts products of the same a, side by side: each has kCols / kProducts columns.
// kOther: a is kept with its rows together, b with its columns.
template <Major kMajorA_, Major kMajorB_, int kRows_, int kCols_, int kProducts_ = 1>
struct GemmShape {
  static constexpr Major kMajorA = kMajorA_;
  static constexpr Major kMajorB = kMajorB_;
  static constexpr int kRows = kRows_;
  static constexpr int kCols = kCols_;
  static constexpr int kProducts = kProducts_;

  static constexpr int kOutCols = kCols / kProducts;
  static constexpr int kBands = kRows / 64;
  static constexpr int kBlock = 64;  // terms of a stage

  static constexpr int kBytesOfA = kRows * kBlock * 2;
  // Where columns are together they come in boxes of 64, of which the last may be half used.
  static constexpr int kBoxesOfB = (kCols + 63) / 64;
  static constexpr int kBytesOfB = (kMajorB == Major::kK ? kCols : 64 * kBoxesOfB) * kBlock * 2;
  static constexpr int kStageBytes = kBytesOfA + kBytesOfB;
  static_assert(kRows % 64 == 0 && kCols % kProducts == 0);
  static_assert(kProducts == 1 || kMajorB == Major::kK);

  using Sums = float[kBands][kCols / 2];  // of a thread
};

}  // namespace transformer_kernels::cuda
