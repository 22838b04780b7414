// SPDX-License-Identifier: MIT
// Matrix products of bfloat16 in pairs: C (+)= A B, where A has pairs of neighbouring columns and B
// pairs of neighbouring rows. AMX keeps a block of C, up to 2 x 2 tiles, in tile registers and
// reads one tile of A and one of B a step; AVX512-BF16 runs the loop of float products. For sources
// that are compiled once per instruction set.
#pragma once

#include "core/cpu/bfloat16_pair.h"
#include "core/cpu/multiply.h"
#if TFK_ISA_LEVEL >= 4
#include "core/cpu/tiles.h"
#endif

namespace transformer_kernels::cpu::TFK_ISA {

// Pairs of a row follow each other.
using PairLeft = LeftMatrix<BFloat16Pair>;
using PairRight = RightMatrix<BFloat16Pair>;
using PairOut = OutMatrix<float>;
inline constexpr std::int64_t kPairCols = kTileCols<BFloat16Pair>;  // of a panel

#if TFK_ISA_LEVEL >= 4

using PairScope = TileScope;

// Tile registers: C in 0 to 3, row by row, A in 4 and 5, B in 6 and 7.
template <bool kAdd, int kRowTiles, int kColTiles>
TFK_INLINE void begin_tiles(PairOut c) {
  const std::int64_t step = c.row_step * static_cast<std::int64_t>(sizeof(float));
  const float* const below = c.data + kTileSide * c.row_step;
  if constexpr (kAdd) {
    _tile_loadd(0, c.data, step);
    if constexpr (kColTiles == 2) _tile_loadd(1, c.data + kTileSide, step);
    if constexpr (kRowTiles == 2) _tile_loadd(2, below, step);
    if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_loadd(3, below + kTileSide, step);
  } else {
    _tile_zero(0);
    if constexpr (kColTiles == 2) _tile_zero(1);
    if constexpr (kRowTiles == 2) _tile_zero(2);
    if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_zero(3);
  }
}

template <int kRowTiles, int kColTiles>
TFK_INLINE void end_tiles(PairOut c) {
  const std::int64_t step = c.row_step * static_cast<std::int64_t>(sizeof(float));
  float* const below = c.data + kTileSide * c.row_step;
  _tile_stored(0, c.data, step);
  if constexpr (kColTiles == 2) _tile_stored(1, c.data + kTileSide, step);
  if constexpr (kRowTiles == 2) _tile_stored(2, below, step);
  if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_stored(3, below + kTileSide, step);
}

template <bool kAdd, int kRowTiles, int kColTiles>
void multiply_tiles(PairLeft a, PairRight b, PairOut c, std::int64_t depth) {
  constexpr std::int64_t kBytes = sizeof(BFloat16Pair);
  const std::int64_t a_step = a.row_step * kBytes;
  const std::int64_t b_step = b.k_step * kBytes;
  begin_tiles<kAdd, kRowTiles, kColTiles>(c);
  for (std::int64_t k = 0; k < depth; k += kTileSide) {
    const BFloat16Pair* const left = a.data + k;
    const BFloat16Pair* const right = b.data + k * b.k_step;
    _tile_loadd(6, right, b_step);
    _tile_loadd(4, left, a_step);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColTiles == 2) {
      _tile_loadd(7, right + kTileSide, b_step);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles == 2) {
      _tile_loadd(5, left + kTileSide * a.row_step, a_step);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_dpbf16ps(3, 5, 7);
  }
  end_tiles<kRowTiles, kColTiles>(c);
}

template <bool kAdd>
constexpr auto* pick_multiply_tiles(bool two_rows, bool two_cols) {
  using Function = void(PairLeft, PairRight, PairOut, std::int64_t);
  constexpr Function* kTable[2][2] = {{multiply_tiles<kAdd, 1, 1>, multiply_tiles<kAdd, 1, 2>},
                                      {multiply_tiles<kAdd, 2, 1>, multiply_tiles<kAdd, 2, 2>}};
  return kTable[two_rows][two_cols];
}

// Rows, columns and pairs of rows of B are multiples of kTileSide.
template <bool kAdd>
void multiply_pairs(PairLeft a, PairRight b, PairOut c, std::int64_t rows, std::int64_t cols,
                    std::int64_t depth) {
  constexpr std::int64_t kBlock = 2 * kTileSide;
  static_assert(kPairCols % kBlock == 0);
  tile_fence();
  for (std::int64_t col = 0; col < cols; col += kBlock) {
    const PairRight panel{b.data + col / kPairCols * b.panel_step + col % kPairCols, b.k_step};
    for (std::int64_t row = 0; row < rows; row += kBlock) {
      pick_multiply_tiles<kAdd>(rows - row >= kBlock, cols - col >= kBlock)(
          {a.data + row * a.row_step, a.row_step}, panel,
          {c.data + row * c.row_step + col, c.row_step}, depth);
    }
  }
  tile_fence();
}

#else

// Products are possible while this lives: vectors need nothing.
struct [[maybe_unused]] PairScope {};

template <bool kAdd>
void multiply_pairs(PairLeft a, PairRight b, PairOut c, std::int64_t rows, std::int64_t cols,
                    std::int64_t depth) {
  multiply<kAdd>(a, b, c, rows, cols, depth);
}

#endif

}  // namespace transformer_kernels::cpu::TFK_ISA
