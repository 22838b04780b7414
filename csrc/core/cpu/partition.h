// SPDX-License-Identifier: MIT
// Binary searches over the numbers [0, count).
#pragma once

#include <cstdint>

#include "core/inline.h"

namespace transformer_kernels::cpu {

// The first number that is not `before`; those that are come first. `count` where all are.
template <class Before>
TFK_INLINE std::int64_t first_not(std::int64_t count, Before&& before) {
  std::int64_t low = 0;
  std::int64_t high = count;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (before(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Rows of different lengths as units of work: the row itself, and then its elements, the first of
// which is number begin(row). Ranges of units cut the work evenly, also where a few rows have most
// of the elements.
template <class Begin>
struct RowUnits {
  std::int64_t rows;
  Begin begin;

  std::int64_t count() const { return rows + begin(rows); }

  // The first row that starts at `unit` or later.
  std::int64_t row_at(std::int64_t unit) const {
    return first_not(rows, [&](std::int64_t row) { return row + begin(row) < unit; });
  }
};

}  // namespace transformer_kernels::cpu
