// SPDX-License-Identifier: MIT
// The innermost loop of products: a tile of the result, kTileHeight rows of kTileWidth vectors,
// stays in registers while all terms of a part pass. For sources that are compiled once per
// instruction set.
//
// Each term takes kTileWidth vectors of the right operand and one number of the left operand for
// every row: with AVX-512, 24 multiplications for 11 loads. Both operands are read in order, the
// left one in groups of rows as wide as a vector, so that a transposition makes them; the next
// panel is fetched into the first-level cache meanwhile.
#pragma once

#include <algorithm>

#include "core/cpu/sums.h"

namespace transformer_kernels::cpu::TFK_ISA {

// With the vectors of a term and one number the tile fills 32 registers, or 16.
inline constexpr int kTileHeight = kVectorRegisters >= 32 ? 8 : 4;
inline constexpr int kTileWidth = 3;

// Rows of the left operand that lie together, and columns of the right one.
template <class F>
inline constexpr int kGroupRows = std::max(kTileHeight, Vec<F>::kLanes);
template <class F>
inline constexpr int kPanelCols = kTileWidth* Vec<F>::kLanes;

// Tiles below each other, against a panel of the right operand.
template <class F>
struct TileColumn {
  const F* left;           // [group][term][kGroupRows]
  std::int64_t left_step;  // from one group to the next
  const F* right;          // [term][kPanelCols]
  const F* next;           // the panel after it
  sum_t<F>* sums;
  std::int64_t sums_step;
  std::int64_t rows;
  std::int64_t terms;
};

template <class F, int kVectors>
TFK_INLINE void add_term(const F* left, const F* right,
                         Vec<sum_t<F>> (&sum)[kTileHeight][kVectors]) {
  Vec<F> row[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) row[v] = load(right + v * Vec<F>::kLanes, All{});
#pragma GCC unroll 8
  for (int r = 0; r < kTileHeight; ++r) {
    const Vec<F> number = Vec<F>::of(left[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(number, row[v], sum[r][v]);
  }
}

// Sums are formed beside those of earlier parts and added at the end: that rounds less than adding
// term by term. `fetch` is where to go on fetching the next panel, a line for four terms.
template <class F, int kVectors>
TFK_INLINE void multiply_tile(const F* left, const F* right, std::int64_t terms, sum_t<F>* sums,
                              std::int64_t sums_step, bool add, const F* fetch) {
  constexpr int kLeft = kGroupRows<F>;
  constexpr int kRight = kPanelCols<F>;
  constexpr int kLine = 64 / sizeof(F);
  using S = Vec<sum_t<F>>;
  S sum[kTileHeight][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileHeight; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = S::of(0);
  }
  std::int64_t k = 0;
  for (; k + 4 <= terms; k += 4) {
    prefetch(fetch);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) add_term<F, kVectors>(left + i * kLeft, right + i * kRight, sum);
    left += 4 * kLeft;
    right += 4 * kRight;
    fetch += kLine;
  }
  for (; k < terms; ++k) {
    add_term<F, kVectors>(left, right, sum);
    left += kLeft;
    right += kRight;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileHeight; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum_t<F>* const place = sums + r * sums_step + v * S::kLanes;
      store(place, add ? load(place, All{}) + sum[r][v] : sum[r][v], All{});
    }
  }
}

template <class F, int kVectors>
void multiply_column(const TileColumn<F>& column, bool add) {
  const TileColumn<F> c = column;  // no store can change it
  const std::int64_t fetched = c.terms / 4 * (64 / sizeof(F));
  for (std::int64_t row = 0; row < c.rows; row += kTileHeight) {
    const F* const left = c.left + row / kGroupRows<F> * c.left_step + row % kGroupRows<F>;
    multiply_tile<F, kVectors>(left, c.right, c.terms, c.sums + row * c.sums_step, c.sums_step, add,
                               c.next + row / kTileHeight * fetched);
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
