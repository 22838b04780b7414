// SPDX-License-Identifier: MIT
// The edges of a graph, or the rows of a ragged batch, by the segment that each belongs to.
//
// Places k = 0, 1, ..., E - 1 are sorted by segment: places offsets[i], ..., offsets[i + 1] - 1 are
// those of segment i, and there are none where the two are equal. The edge in place k has the
// number order[k], k where there is no order: rows of weights and results are by number, so that a
// caller's edges stay where they are. Across it lies row indices[k] of the other operand, the row
// of its own number where there are no indices.
//
// The gradient of what lies across takes the same edges sorted by indices: the transpose. Places
// back_offsets[j], ... are those of the edges across which j lies, back_indices[k] is the segment
// of the edge in place k, and back_order[k] its number.
//
// Indices are int32 or int64, each tensor for itself, and contiguous. offsets begin with 0, never
// fall and end with E; order is a permutation; the transpose is of the same edges. On the CPU all
// of this is refused where it does not hold, but for permutation and transpose, of which only the
// range is looked at. On CUDA nothing waits for the device to look: an edge whose index is out of
// range contributes nothing, other violations give unspecified numbers, and no memory beyond the
// tensors is touched.
#pragma once

#include "transformer_kernels/tensor.h"

namespace transformer_kernels {

struct Edges {
  TensorView offsets{};  // (N + 1,)
  TensorView indices{};  // (E,), may be absent
  TensorView order{};    // (E,), may be absent
  TensorView back_offsets{};
  TensorView back_indices{};
  TensorView back_order{};  // all three may be absent
};

}  // namespace transformer_kernels
