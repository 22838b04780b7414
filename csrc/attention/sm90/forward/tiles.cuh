// SPDX-License-Identifier: MIT
// Tiles of the forward pass on sm_90a: the keys that they see, the order in which CTAs take them,
// and the stores of out.
#pragma once

#include "attention/sm90/forward/storage.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Keys that one of the queries from `first` to `last` sees.
template <class C>
__device__ __forceinline__ IntRange seen_keys(const HopperForward& p, int first, int last,
                                              int shift, int keys) {
  if constexpr (!C::kWindow) return {0, keys};
  return p.band(shift, keys).seen_by_any(first, last);
}

// The part of a tile that one warpgroup has.
struct GroupTile {
  ForwardTile tile;
  int query;       // the group's first
  int shift;       // from a query to the key on its diagonal
  int first, end;  // blocks that it needs
  int full_from;   // blocks from here up to full_end are seen whole by every query
  int full_end;
};

struct ForwardPlace {
  int query;
  int batch;
  int head;
};

// The blocks of a head come last first: under a causal mask the longest ones. Sections of heads
// keep k and v in L2.
template <class C>
__device__ __forceinline__ ForwardPlace forward_place(const HopperForward& p, int index) {
  if (p.blocks.offsets != nullptr) {
    const int head = index / p.blocks_per_head;
    const RowBlocks blocks{p.blocks.offsets, p.blocks.batch, p.blocks.rows,
                           C::kPlan.tile_queries()};
    const RowBlocks::Place place = blocks[index - head * p.blocks_per_head];
    return {place.first, place.batch, head};
  }
  const int heads = static_cast<int>(p.problem.heads);
  const int section = index / (p.section * p.blocks_per_head);
  const int rest = index - section * p.section * p.blocks_per_head;
  const int here = min(p.section, heads * static_cast<int>(p.problem.batch) - section * p.section);
  const int block = rest / here;
  const int head = section * p.section + rest - block * here;
  if constexpr (C::kHasFeatures) {
    if (p.batches_inside) {
      const int batches = static_cast<int>(p.problem.batch);
      const int own = head / batches;
      return {(p.blocks_per_head - 1 - block) * C::kPlan.tile_queries(), head - own * batches, own};
    }
  }
  const int batch = head / heads;
  return {(p.blocks_per_head - 1 - block) * C::kPlan.tile_queries(), batch, head - batch * heads};
}

template <class C>
__device__ __forceinline__ ForwardTile tile_at(const HopperForward& p, int index) {
  const ForwardPlace place = forward_place<C>(p, index);
  ForwardTile t{.query = place.query,
                .batch = place.batch,
                .head = place.head,
                .queries = static_cast<int>(p.problem.queries),
                .keys = static_cast<int>(p.problem.keys)};
  if (p.blocks.offsets != nullptr) {
    t.q_begin = p.problem.q_offsets[t.batch];
    t.queries = p.problem.q_offsets[t.batch + 1] - t.q_begin;
    t.keys = p.problem.k_offsets[t.batch + 1] - p.problem.k_offsets[t.batch];
  }
  const int last = min(t.query + C::kPlan.tile_queries(), t.queries) - 1;
  const int shift = shift_of(p.problem.bottom_right, t.queries, t.keys);
  const IntRange seen = seen_keys<C>(p, t.query, last, shift, t.keys);
  if (seen.begin < seen.end) {
    t.begin = seen.begin / C::kKeys;
    t.end = (seen.end + C::kKeys - 1) / C::kKeys;
  }
  return t;
}

// Whether TMA stores these 64 rows: it clips at the end of a tensor, but not at that of a sequence.
__device__ __forceinline__ bool stored_by_tma(const HopperForward& p, const ForwardTile& t,
                                              int query) {
  return p.blocks.offsets == nullptr ? query < t.queries : query + 64 <= t.queries;
}

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
