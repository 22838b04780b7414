// SPDX-License-Identifier: MIT
// The fields of a graph's edges, in the order of every schema.
#pragma once

#include "torch/fields.h"
#include "transformer_kernels/graph/edges.h"

namespace transformer_kernels::torch_ops {

// A member of the edges of the arguments.
template <class A>
constexpr auto edge(TensorView Edges::*member) {
  return within(&A::edges, member);
}

// The fields for an op that requires indices, or for one to which they are optional.
template <class A, bool kNeedsIndices = false>
constexpr auto edge_fields() {
  constexpr auto kIndices = [] {
    if constexpr (kNeedsIndices) {
      return tensor("indices", edge<A>(&Edges::indices), packed_indices);
    } else {
      return optional("indices", edge<A>(&Edges::indices), packed_indices);
    }
  }();
  return std::tuple(tensor("offsets", edge<A>(&Edges::offsets), packed_indices), kIndices,
                    optional("order", edge<A>(&Edges::order), packed_indices),
                    optional("back_offsets", edge<A>(&Edges::back_offsets), packed_indices),
                    optional("back_indices", edge<A>(&Edges::back_indices), packed_indices),
                    optional("back_order", edge<A>(&Edges::back_order), packed_indices));
}

// (rows, cols) of the dtype of `like`.
inline TensorView matrix(const TensorView& like, std::int64_t rows, std::int64_t cols) {
  return layout_of(like.device, std::array{rows, cols}, like.dtype);
}

inline std::int64_t segments_of(const Edges& edges) {
  const std::int64_t offsets = edges.offsets.numel();
  return offsets > 0 ? offsets - 1 : 0;
}
inline std::int64_t edges_of(const Edges& edges, const TensorView& across) {
  return edges.indices.defined() ? edges.indices.numel() : size_or_0(across, 0);
}

}  // namespace transformer_kernels::torch_ops
