// SPDX-License-Identifier: MIT
// A tile of a product for every device, dtype and stride: 64 x 64 sums a CTA, 4 x 4 a thread,
// operands through shared memory.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace transformer_kernels::cuda {

inline constexpr int kPlainTile = 64;
inline constexpr int kPlainThreads = 256;

// a(row of the tile, term) and b(term, column of the tile) are numbers of the operands, 0 past
// their end; finish(row, column, sum) gets each sum.
template <class A, class LoadA, class LoadB, class Finish>
__device__ __forceinline__ void plain_tile(std::int64_t terms, LoadA&& load_a, LoadB&& load_b,
                                           Finish&& finish) {
  constexpr int kTerms = 32;  // of a step, summed for themselves: long sums are as exact as others'
  constexpr int kEach = kPlainTile / 16;  // rows, and columns, of a thread: every sixteenth
  __shared__ A a[kTerms][kPlainTile + 1];
  __shared__ A b[kTerms][kPlainTile + 1];
  const int own_row = threadIdx.x / 16;
  const int own_col = threadIdx.x % 16;
  A sums[kEach][kEach] = {};
  for (std::int64_t first = 0; first < terms; first += kTerms) {
    for (int i = threadIdx.x; i < kPlainTile * kTerms; i += kPlainThreads) {
      const int at = i / kTerms;
      const int term = i % kTerms;
      const bool is_term = first + term < terms;
      a[term][at] = is_term ? load_a(at, first + term) : A{0};
      b[term][at] = is_term ? load_b(first + term, at) : A{0};
    }
    __syncthreads();
    A step[kEach][kEach] = {};
    for (int k = 0; k < kTerms; ++k) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
          step[r][c] += a[k][own_row + 16 * r] * b[k][own_col + 16 * c];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) sums[r][c] += step[r][c];
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int c = 0; c < kEach; ++c) finish(own_row + 16 * r, own_col + 16 * c, sums[r][c]);
  }
}

}  // namespace transformer_kernels::cuda
