// SPDX-License-Identifier: MIT
// Blocks of rows of all sequences, numbered without a table: the offsets may lie in device memory,
// where the host cannot count. Sequence b's blocks begin at number offsets[b] / size + b, which
// leaves room for one block more than the sequence may need; such a block is empty.
#pragma once

#include <cstdint>

#include "core/rounding.h"

namespace transformer_kernels {

struct RowBlocks {
  const std::int32_t* offsets;  // null where all sequences have the same length
  std::int64_t batch;           // sequences
  std::int64_t rows;            // of one sequence; with offsets, of all together
  int size;                     // rows of a block

  struct Place {
    int batch;
    int first;  // row of the block, from the begin of its sequence
  };

  // The number of blocks of one head, over all sequences.
  constexpr std::int64_t count() const {
    if (batch == 0) return 0;
    return offsets == nullptr ? batch * per_sequence() : rows / size + batch;
  }

  constexpr Place operator[](std::int64_t index) const {
    if (offsets == nullptr) {
      const std::int64_t b = index / per_sequence();
      return {static_cast<int>(b), static_cast<int>((index - b * per_sequence()) * size)};
    }
    // The last sequence that begins at or before the index.
    int low = 0;
    for (int high = static_cast<int>(batch); high - low > 1;) {
      const int middle = (low + high) / 2;
      (begin(middle) <= index ? low : high) = middle;
    }
    return {low, static_cast<int>((index - begin(low)) * size)};
  }

 private:
  constexpr std::int64_t per_sequence() const { return divide_up(rows, size); }
  constexpr std::int64_t begin(int b) const { return offsets[b] / size + b; }
};

}  // namespace transformer_kernels
