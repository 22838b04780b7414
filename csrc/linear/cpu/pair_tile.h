// SPDX-License-Identifier: MIT
// The innermost loop of bfloat16 products by AMX: up to 2 x 2 tiles of the result stay in tile
// registers while all pairs of a part pass. Both operands are read in order, 32 lines and 32 terms
// a step; a panel of the right one stays in the first-level cache. There are no prefetch
// instructions, because they would take the place of loads. For sources that are compiled once per
// instruction set.
#pragma once

#include "core/cpu/pair_multiply.h"
#include "linear/cpu/kernels.h"

namespace transformer_kernels::cpu::TFK_ISA {

inline constexpr std::int64_t kPanelLines = 2 * kTileSide;  // of either operand
inline constexpr std::int64_t kStepPairs = kPanelLines * kTileSide;

// Panels of both operands, pairs [0, 16 * steps) of them. The left one has its pairs by lines, a
// tile below the other, the right one by terms, a tile beside the other.
struct TileSteps {
  const BFloat16Pair* left;
  const BFloat16Pair* right;
  std::int64_t steps;
};

template <bool kAdd, int kRowTiles, int kColTiles>
void multiply_steps(TileSteps s, PairOut from, PairOut to) {
  constexpr std::int64_t kLeftStep = kTileSide * sizeof(BFloat16Pair);
  constexpr std::int64_t kRightStep = kPanelLines * sizeof(BFloat16Pair);
  begin_tiles<kAdd, kRowTiles, kColTiles>(from);
  for (std::int64_t step = 0; step < s.steps; ++step) {
    _tile_loadd(6, s.right, kRightStep);
    _tile_loadd(4, s.left, kLeftStep);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kColTiles == 2) {
      _tile_loadd(7, s.right + kTileSide, kRightStep);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kRowTiles == 2) {
      _tile_loadd(5, s.left + kTileSide * kTileSide, kLeftStep);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kRowTiles == 2 && kColTiles == 2) _tile_dpbf16ps(3, 5, 7);
    s.left += kStepPairs;
    s.right += kStepPairs;
  }
  end_tiles<kRowTiles, kColTiles>(to);
}

// For `rows` and `cols` of a result, which has sums of earlier parts in `from`, or none.
inline auto* multiply_panels(bool add, std::int64_t rows, std::int64_t cols) {
  using Function = void(TileSteps, PairOut, PairOut);
  constexpr Function* kTable[2][2][2] = {
      {{multiply_steps<false, 1, 1>, multiply_steps<false, 1, 2>},
       {multiply_steps<false, 2, 1>, multiply_steps<false, 2, 2>}},
      {{multiply_steps<true, 1, 1>, multiply_steps<true, 1, 2>},
       {multiply_steps<true, 2, 1>, multiply_steps<true, 2, 2>}}};
  return kTable[add][rows > kTileSide][cols > kTileSide];
}

}  // namespace transformer_kernels::cpu::TFK_ISA
