// SPDX-License-Identifier: MIT
// How a CTA finds its tensor in a table.
#pragma once

#include "optimizer/tables.h"

namespace transformer_kernels::cuda {

// The row that a chunk lies in: the last one that begins at it or before. Rows without elements
// begin where the next one does.
template <class Row, int kRows>
__device__ __forceinline__ int row_of_chunk(const RowTable<Row, kRows>& table, int chunk) {
  int low = 0;
  int high = table.rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace transformer_kernels::cuda
