// SPDX-License-Identifier: MIT
// The position of a token, the same on the host and in a CUDA thread.
#pragma once

#include "core/inline.h"
#include "rope/problem.h"

namespace transformer_kernels {

struct Token {
  std::int64_t batch;
  std::int64_t time;
};

// The axis of positions that frequency f uses.
TFK_INLINE int axis_of(const AngleTables& t, std::int64_t frequency) {
  return frequency < t.axis_end[0] ? 0 : (frequency < t.axis_end[1] ? 1 : 2);
}

// The sequence that holds a row, or the number of sequences where none does.
TFK_INLINE std::int64_t sequence_of(const AngleTables& t, std::int64_t row) {
  std::int64_t low = 0;  // the first sequence that ends behind the row is among [low, high]
  std::int64_t high = t.sequences;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (t.cu_seqlens[middle + 1] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// One number for each axis; only the first where there are none.
struct Positions {
  std::int64_t at[kRopeAxes];
  bool rotates = true;  // no sequence holds the token otherwise

  // Without an index that a CUDA thread would need its array in memory for.
  TFK_INLINE std::int64_t of(int axis) const {
    return axis == 0 ? at[0] : (axis == 1 ? at[1] : at[2]);
  }
};

TFK_INLINE Positions positions_of(const AngleTables& t, Token token) {
  Positions p{};
  if (t.ids.data != nullptr) {
    const std::int64_t first = token.batch * t.id_batch + token.time * t.id_time;
    p.at[0] = t.ids[first];
    if (t.has_axes()) {
      p.at[1] = t.ids[first + t.id_axis];
      p.at[2] = t.ids[first + 2 * t.id_axis];
    }
    return p;
  }
  std::int64_t sequence = token.batch;
  p.at[0] = token.time + t.offset;
  if (t.cu_seqlens != nullptr) {
    sequence = sequence_of(t, token.time);
    p.rotates = sequence < t.sequences;
    if (!p.rotates) return p;
    p.at[0] -= t.cu_seqlens[sequence];
  }
  if (t.offsets.data != nullptr) p.at[0] += t.offsets[sequence];
  return p;
}

}  // namespace transformer_kernels
