// SPDX-License-Identifier: MIT
// The edges of a graph, or the rows of a ragged batch, grouped by the segment that each belongs to.
//
// Places k = 0, 1, ..., E - 1 are sorted by segment: places offsets[i], ..., offsets[i + 1] - 1 are
// those of segment i, which is empty where the two are equal. The edge in place k has the number
// order[k], or k without an order. Weights and results have a row for each edge number, so a
// caller's edges stay where they are. The row of the other operand "across" the edge is row
// indices[k], or the row of the edge's own number without indices.
//
// The gradient of that other operand takes the same edges sorted by indices: the transpose. Places
// back_offsets[j], ... are those of the edges that have row j across, back_indices[k] is the
// segment of the edge in place k, and back_order[k] its number.
//
// Each index tensor is int32 or int64, and contiguous. offsets begin with 0, never fall and end
// with E; order is a permutation; the transpose has the same edges. The CPU refuses arguments that
// break these rules, except that of order and the transpose it checks the range alone. On CUDA the
// host does not wait for a check: an edge whose index is out of range contributes nothing, other
// violations give unspecified numbers, and no memory beyond the tensors is touched.
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
