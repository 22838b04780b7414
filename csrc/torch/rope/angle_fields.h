// SPDX-License-Identifier: MIT
// The fields of positions, which the family's ops share.
#pragma once

#include "torch/fields.h"
#include "transformer_kernels/rope/rope.h"

namespace transformer_kernels::torch_ops {

// A member of the angles of the arguments.
template <class A, class Member>
constexpr auto angle(Member member) {
  return within(&A::angles, member);
}

// The fields that choose each token's angles, after the tables.
template <class A>
constexpr auto position_fields() {
  return std::tuple(optional("position_ids", angle<A>(&RopeAngles::position_ids), packed_indices),
                    optional("offsets", angle<A>(&RopeAngles::offsets), packed_indices),
                    optional("cu_seqlens", angle<A>(&RopeAngles::cu_seqlens)),
                    integer("offset", angle<A>(&RopeAngles::offset)),
                    integer("section_time", angle<A>(&RopeAngles::section_time)),
                    integer("section_height", angle<A>(&RopeAngles::section_height)),
                    flag("interleaved", angle<A>(&RopeAngles::interleaved)));
}

// Position ids may be the same for several sequences: (T,) or (1, T) beside (B, T).
inline void broadcast_ids(const char* op, RopeAngles& angles, const TensorView& q) {
  TensorView& ids = angles.position_ids;
  if (!ids.defined() || q.rank < 3) return;  // the checks will say why not
  TensorView tokens = q;
  tokens.rank = q.rank - 2;
  if (ids.rank > tokens.rank) {
    tokens.rank = q.rank - 1;
    tokens.sizes = {3, q.sizes[0], q.sizes[1]};
  }
  ids = broadcast_to(op, "position_ids", ids, tokens, "batch and time of q");
}

// The schema of a backward pass has a gradient for a k that is not there, too: one of no elements
// and of one dimension.
inline void drop_absent(TensorView& gradient) {
  if (gradient.rank == 1 && gradient.numel() == 0) gradient = {};
}

}  // namespace transformer_kernels::torch_ops
