// SPDX-License-Identifier: MIT
// Common: what engines share. Here, the rows of a sequence and the places that a query sees; on
// CUDA, scores.cuh makes a score of a product, row_gradients.h the statistics of rows and the
// gradients of sinks, and tail.cuh what lies behind the last sequence.
//
// Query i of a sequence stands on key i + shift, its diagonal: shift is 0, or keys - queries where
// the last query stands on the last key. Of the keys it sees those from window_left before the
// diagonal to window_right behind it; causal is a window_right of 0. A score is made only where the
// window, the end of the sequence and the mask all let it be seen.
//
//              keys ->                            window_left 2, window_right 1, shift 1
//   query 0    d-1  d  d+1  .   .   .             d: diagonal
//         1    d-2 d-1  d  d+1  .   .
//         2     .  d-2 d-1  d  d+1  .
//         3     .   .  d-2 d-1  d  d+1
#pragma once

#include <cstdint>

namespace transformer_kernels {

// Half-open.
template <class Int>
struct BasicRange {
  Int begin;
  Int end;

  constexpr Int size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
};
using Range = BasicRange<std::int64_t>;

// The rows of one sequence among those of its batch.
struct Sequence {
  std::int64_t q_begin;
  std::int64_t queries;
  std::int64_t k_begin;
  std::int64_t keys;
};

// Where CUDA kernels count in 32 bits: sequences are shorter than "no bound" of a window, so sums
// of the two do not overflow.
namespace cuda {
using IntRange = BasicRange<int>;

struct IntSequence {
  int queries;
  int keys;
  int q_begin;
  int k_begin;
};

inline constexpr int kNoBound = 1 << 29;

constexpr int bound_of(std::int64_t window) {
  return window < 0 || window > kNoBound ? kNoBound : static_cast<int>(window);
}
}  // namespace cuda

}  // namespace transformer_kernels
