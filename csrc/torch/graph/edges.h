// SPDX-License-Identifier: MIT
// The fields of a graph's edges, in the order of every schema.
#pragma once

#include "torch/fields.h"
#include "transformer_kernels/graph/edges.h"

namespace transformer_kernels::torch_ops {

// The fields for an op that requires indices, or for one to which they are optional.
template <class A, bool kNeedsIndices = false>
constexpr auto edge_fields() {
  constexpr auto kIndices = [] {
    if constexpr (kNeedsIndices) {
      return tensor("indices", &A::indices, packed_indices);
    } else {
      return optional("indices", &A::indices, packed_indices);
    }
  }();
  return std::tuple(tensor("offsets", &A::offsets, packed_indices), kIndices,
                    optional("order", &A::order, packed_indices),
                    optional("back_offsets", &A::back_offsets, packed_indices),
                    optional("back_indices", &A::back_indices, packed_indices),
                    optional("back_order", &A::back_order, packed_indices));
}

// (rows, cols) of the dtype of `like`, with a view of it; of no elements where it is not wanted.
inline Tensor matrix_if(bool wanted, TensorView& view, const TensorView& like, std::int64_t rows,
                        std::int64_t cols, DType dtype) {
  if (!wanted) return empty(like.device, std::array<std::int64_t, 1>{0}, dtype);
  const Tensor tensor = empty(like.device, std::array{rows, cols}, dtype);
  view = view_of("", "result", tensor);
  return tensor;
}
inline Tensor matrix(TensorView& view, const TensorView& like, std::int64_t rows,
                     std::int64_t cols) {
  return matrix_if(true, view, like, rows, cols, like.dtype);
}

// Sizes of tensors whose ranks are checked later, with all else.
inline std::int64_t size_or_0(const TensorView& view, int dim) {
  return view.rank > dim ? view.sizes[dim] : 0;
}
inline std::int64_t segments_of(const Edges& edges) {
  const std::int64_t offsets = edges.offsets.numel();
  return offsets > 0 ? offsets - 1 : 0;
}
inline std::int64_t edges_of(const Edges& edges, const TensorView& across) {
  return edges.indices.defined() ? edges.indices.numel() : size_or_0(across, 0);
}

}  // namespace transformer_kernels::torch_ops
