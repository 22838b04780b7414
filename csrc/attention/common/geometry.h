// SPDX-License-Identifier: MIT
// Common: code that engines share. This file has the rows of a sequence and the keys that a query
// sees. On CUDA, scores.cuh turns a product into a score, row_gradients.h computes the statistics
// of rows and the gradients of sinks, and tail.cuh fills the rows after the last sequence.
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

constexpr int shift_of(bool bottom_right, int queries, int keys) {
  return bottom_right ? keys - queries : 0;
}

// The columns that rows see by their place. Rows are queries and columns keys; transposed, the
// other way round: bounds change sides, and the diagonal is the same.
struct Band {
  int shift;    // row r stands on column r + shift
  int back;     // columns seen before that one, kNoBound where all are
  int ahead;    // and behind it
  int columns;  // that there are

  constexpr Band transposed(int rows) const { return {-shift, ahead, back, rows}; }

  // Columns that a row sees, and rows that see a column. Both ends count, and may lie where there
  // is nothing.
  constexpr int first(int row) const { return row + shift - back; }
  constexpr int last(int row) const { return row + shift + ahead; }
  constexpr int first_row(int column) const { return column - ahead - shift; }
  constexpr int last_row(int column) const { return column + back - shift; }

  // The columns that a row sees, clipped to those that exist. For a row that sees none, end is
  // begin.
  constexpr int begin(int row) const { return below_end(from_0(first(row))); }
  constexpr int end(int row) const { return below_end(from_0(last(row) + 1)); }

  // Columns that one of the rows sees, or all of them do: bounds move with the row, one way. Each
  // is clipped on its own side only, so a range without columns may end long before its begin.
  constexpr IntRange seen_by_any(int from, int through) const {
    return {from_0(first(from)), below_end(last(through) + 1)};
  }
  constexpr IntRange seen_by_all(int from, int through) const { return seen_by_any(through, from); }

 private:
  // Not std::max and std::min, which return references: a kernel's band would lie in memory.
  static constexpr int from_0(int column) { return column > 0 ? column : 0; }
  constexpr int below_end(int column) const { return column < columns ? column : columns; }
};
}  // namespace cuda

}  // namespace transformer_kernels
