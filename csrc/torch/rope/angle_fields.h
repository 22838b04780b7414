// SPDX-License-Identifier: MIT
// The fields of positions, which the family's ops share.
#pragma once

#include <tuple>

#include "torch/fields.h"
#include "transformer_kernels/rope/rope.h"

namespace transformer_kernels::torch_ops {

// The fields that choose each token's angles, after the tables.
template <class A>
constexpr auto position_fields() {
  return std::tuple(
      optional("position_ids", &A::position_ids, packed_indices),
      optional("offsets", &A::offsets, packed_indices), optional("cu_seqlens", &A::cu_seqlens),
      integer("offset", &A::offset), integer("section_time", &A::section_time),
      integer("section_height", &A::section_height), flag("interleaved", &A::interleaved));
}

// Position ids may be the same for several sequences: (T,) or (1, T) beside (B, T).
inline RopeAngles angles_of(const char* op, const RopeAngles& given, const TensorView& q) {
  RopeAngles angles = given;
  TensorView& ids = angles.position_ids;
  if (!ids.defined() || q.rank < 3) return angles;  // the checks will say why not
  TensorView tokens = q;
  tokens.rank = q.rank - 2;
  if (ids.rank > tokens.rank) {
    tokens.rank = q.rank - 1;
    tokens.sizes = {3, q.sizes[0], q.sizes[1]};
  }
  ids = broadcast_to(op, "position_ids", ids, tokens, "batch and time of q");
  return angles;
}

}  // namespace transformer_kernels::torch_ops
