// SPDX-License-Identifier: MIT
// Small matrix products within the first- and second-level cache: C (+)= A B. A tile of C,
// kTileRows rows of kTileVectors vectors, stays in registers; each step reads one row of B as
// vectors and one number of A for each row of the tile. An element of A and B may be several
// numbers along the contracted dimension. For sources that are compiled once per instruction set.
#pragma once

#include <algorithm>

#include "core/cpu/sums.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr int kTileRows = 6;
// With the vectors of a row of B and one of A the tile fills 16 registers, or 32.
inline constexpr int kTileVectors = kVectorRegisters >= 32 ? 4 : 2;

template <class F>
inline constexpr int kTileCols = kTileVectors* Vec<F>::kLanes;

// Element (row, k) stands at data[row * row_step + k * k_step].
template <class F>
struct LeftMatrix {
  const F* data;
  std::int64_t row_step;
  std::int64_t k_step = 1;
};

// Element (k, col) stands at data[k * k_step + col], where all columns follow each other, or in
// panels of kTileCols columns, panel_step apart.
template <class F>
struct RightMatrix {
  const F* data;
  std::int64_t k_step;
  std::int64_t panel_step = kTileCols<F>;
};

template <class F>
struct OutMatrix {
  F* data;
  std::int64_t row_step;
};

// Sums are formed beside C and added at the end: that rounds less than adding to C term by term.
template <class F, bool kAdd, int kRows, int kVectors>
TFK_INLINE void multiply_tile(LeftMatrix<F> a, RightMatrix<F> b, OutMatrix<sum_t<F>> c,
                              std::int64_t depth) {
  using V = Vec<F>;
  using S = Vec<sum_t<F>>;
  static_assert(V::kLanes == S::kLanes);
  S sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = S::of(0);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    V row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = load(b.data + k * b.k_step + v * V::kLanes, All{});
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V left = V::of(a.data[r * a.row_step + k * a.k_step]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(left, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum_t<F>* const place = c.data + r * c.row_step + v * V::kLanes;
      store(place, kAdd ? load(place, All{}) + sum[r][v] : sum[r][v], All{});
    }
  }
}

// `tiles` tiles below each other. A call for each one would cost a tenth of a product of 64 terms.
template <class F, bool kAdd, int kRows, int kVectors>
void multiply_tiles(LeftMatrix<F> a, RightMatrix<F> b, OutMatrix<sum_t<F>> c, std::int64_t tiles,
                    std::int64_t depth) {
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    multiply_tile<F, kAdd, kRows, kVectors>(a, b, c, depth);
    a.data += kRows * a.row_step;
    c.data += kRows * c.row_step;
  }
}

template <class F>
using TilesFunction = void(LeftMatrix<F>, RightMatrix<F>, OutMatrix<sum_t<F>>, std::int64_t,
                           std::int64_t);

// The tiles of every size up to the largest.
template <class F, bool kAdd>
struct Tiles {
  template <int kRows, int kVectors = kTileVectors>
  static constexpr TilesFunction<F>* get(int vectors) {
    if constexpr (kVectors == 1) {
      return multiply_tiles<F, kAdd, kRows, 1>;
    } else {
      return vectors == kVectors ? multiply_tiles<F, kAdd, kRows, kVectors>
                                 : get<kRows, kVectors - 1>(vectors);
    }
  }
  static constexpr TilesFunction<F>* get(int rows, int vectors) {
    switch (rows) {
      case 1: return get<1>(vectors);
      case 2: return get<2>(vectors);
      case 3: return get<3>(vectors);
      case 4: return get<4>(vectors);
      case 5: return get<5>(vectors);
      default: return get<6>(vectors);
    }
  }
};

// C, rows x cols, becomes A B, or C + A B; `cols` is a multiple of the lanes of a vector. A panel
// of B stays in the first cache while all rows of A pass.
template <bool kAdd, class F>
void multiply(LeftMatrix<F> a, RightMatrix<F> b, OutMatrix<sum_t<F>> c, std::int64_t rows,
              std::int64_t cols, std::int64_t depth) {
  const std::int64_t tiles = rows / kTileRows;
  const std::int64_t done = tiles * kTileRows;
  const int rest = static_cast<int>(rows - done);
  const LeftMatrix<F> a_rest{a.data + done * a.row_step, a.row_step, a.k_step};
  for (std::int64_t col = 0; col < cols; col += kTileCols<F>) {
    const std::int64_t left = cols - col;
    const int vectors =
        left < kTileCols<F> ? static_cast<int>(left / Vec<F>::kLanes) : kTileVectors;
    const RightMatrix<F> panel{b.data + col / kTileCols<F> * b.panel_step, b.k_step};
    const OutMatrix<sum_t<F>> target{c.data + col, c.row_step};
    Tiles<F, kAdd>::get(kTileRows, vectors)(a, panel, target, tiles, depth);
    if (rest == 0) continue;
    Tiles<F, kAdd>::get(rest, vectors)(a_rest, panel, {target.data + done * c.row_step, c.row_step},
                                       1, depth);
  }
}

// multiply() with long sums cut into parts: the rounding error of one chain grows with its length.
template <bool kAdd, class F>
void multiply_in_parts(LeftMatrix<F> a, RightMatrix<F> b, OutMatrix<sum_t<F>> c, std::int64_t rows,
                       std::int64_t cols, std::int64_t depth) {
  constexpr std::int64_t kPart = 128;
  multiply<kAdd>(a, b, c, rows, cols, std::min(kPart, depth));
  for (std::int64_t k = kPart; k < depth; k += kPart) {
    multiply<true>(LeftMatrix<F>{a.data + k * a.k_step, a.row_step, a.k_step},
                   RightMatrix<F>{b.data + k * b.k_step, b.k_step, b.panel_step}, c, rows, cols,
                   std::min(kPart, depth - k));
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
