// SPDX-License-Identifier: MIT
// Sums of the columns of a result while it is in shared memory (chain.cuh).
#pragma once

#include "core/cuda/mma.cuh"
#include "linear/cuda/chain.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// A warp's sums of the columns of a chunk over the bands of its tile. They go to PartialGradients'
// rows of dbias (core/cuda/column_sum.h), one row for the rows that a warp has of a tile.
template <class T>
class ColumnTotals {
 public:
  // Adds the 16 rows whose cells of shared memory this lane reads. Rows past the last are skipped:
  // they are 0 times columns of b, which may not be finite.
  template <class Cell>
  __device__ __forceinline__ void add(const Cell& cell, bool is_first, int row, int rows,
                                      AccumulatorThread own) {
#pragma unroll
    for (int j = 0; j < kChunkCols / 16; ++j) {
      std::uint32_t words[4];
      ldmatrix_x4(words, cell(j));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_row = row + own.lane / 4 + 8 * (i % 2) < rows;
        float two[2];
        widen_word<T>(is_row ? words[i] : 0, two);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& total = totals_[4 * j + i / 2 * 2 + e];
          total = is_first && i % 2 == 0 ? two[e] : total + two[e];
        }
      }
    }
    __syncwarp();  // the slot is given back by one lane
  }

  // The eight lanes with the same columns halve them between them until each has the sum of one.
  __device__ __forceinline__ void store(float* partial, std::int64_t row, int col, int cols,
                                        AccumulatorThread own) {
    static_assert(kCount == 8);
#pragma unroll
    for (int left = 4; left > 0; left /= 2) {
      const int bit = 4 * left;  // of the lane
      const bool is_upper = (own.lane & bit) != 0;
#pragma unroll
      for (int i = 0; i < left; ++i) {
        const float other = __shfl_xor_sync(~0u, is_upper ? totals_[i] : totals_[i + left], bit);
        totals_[i] = (is_upper ? totals_[i + left] : totals_[i]) + other;
      }
    }
    const int own_col = col + own.col(own.lane / 8) + own.lane / 4 % 2;
    if (own_col < cols) partial[(2 * row + 1) * cols + own_col] = totals_[0];
  }

 private:
  static constexpr int kCount = kChunkCols / 4;

  float totals_[kCount];
};

#endif  // sm_80

}  // namespace transformer_kernels::cuda
