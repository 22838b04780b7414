// SPDX-License-Identifier: MIT
// Tiles of the rows of few-row products. For sources that are compiled once per instruction set.
#pragma once

#include <algorithm>

#include "core/cpu/row_loop.h"
#include "linear/cpu/few_rows.h"

namespace transformer_kernels::cpu::TFK_ISA {

// Calls body.operator()<rows of a tile>(first row) for each tile of `rows`.
template <class Body>
TFK_INLINE void for_each_row_tile(std::int64_t rows, Body&& body) {
  for (std::int64_t row = 0; row < rows; row += kTallestTile) {
    switch (tile_rows(std::min(kTallestTile, rows - row))) {
      case 1: body.template operator()<1>(row); break;
      case 2: body.template operator()<2>(row); break;
      case 4: body.template operator()<4>(row); break;
      default: body.template operator()<8>(row);
    }
  }
}

}  // namespace transformer_kernels::cpu::TFK_ISA
