// SPDX-License-Identifier: MIT
// P^T of a block in which some queries have far rows: see FarRow. Shared memory only marks these
// rows; their lse and lse_rest are read from global memory, which is seldom needed.
#pragma once

#include "attention/sm90/backward/rows.cuh"
#include "attention/sm90/backward/storage.cuh"

namespace transformer_kernels::cuda {

// `statistics`: the address of a block's in shared memory.
__device__ __forceinline__ bool is_marked_far(std::uint32_t statistics) {
  return (load_shared_int(statistics + kFarWord * 4) & 1) != 0;
}

// Whether any of the block's origins is far, the same answer in all lanes of the warp.
__device__ __forceinline__ bool has_far_origin(std::uint32_t origins, int lane) {
  const float2 pair = load_shared_float2(origins + lane * 8);
  return __any_sync(kAllLanes, is_far(pair.x) || is_far(pair.y));
}

// The place of a block's first query in lse. S is the shared memory of the item.
template <class C, class S>
__device__ __forceinline__ std::int64_t first_row_of_block(const HopperBackward& p,
                                                           std::uint32_t item, int block) {
  const AttentionProblem& of = p.features.problem;
  const std::int64_t head = S::item_word(item, WorkItem::kHead);
  std::int64_t row = block * kBlockQueries;
  if constexpr (C::kRagged) {
    if (of.q_offsets != nullptr) return row + head * of.queries + S::item_sequence(item).q_begin;
  }
  row += (S::item_word(item, WorkItem::kBatch) * of.heads + head) * of.queries;
  return row;
}

// Scores S^T, times `outer`, become P^T. `origin(i)` has those of queries 16 i + 2 (lane % 4), the
// next one, and both 8 later; `row` is the place of the block's first query.
template <class T, class Origin>
__device__ __forceinline__ void exponentiate_far(const HopperBackward& p, std::int64_t row,
                                                 float outer, int lane, Origin&& origin,
                                                 float (&s)[32]) {
  row += lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 origins = origin(i);
    const float of[4] = {origins.x, origins.y, origins.z, origins.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      asm volatile("" ::: "memory");  // one row's numbers at a time: there are no registers for all
      const FarRow<T> of_row(p, row + 16 * i + j / 2 * 8 + j % 2, of[j]);
      float* const x = s + 8 * i + j / 2 * 4 + j % 2;
      x[0] = of_row.power(__fmul_rn(x[0], outer));
      x[2] = of_row.power(__fmul_rn(x[2], outer));
    }
  }
}

}  // namespace transformer_kernels::cuda
