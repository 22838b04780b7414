// SPDX-License-Identifier: MIT
// Declarations that the roles of the forward kernel share: its parameters, its configuration and
// its shared memory.
#pragma once

#include <array>

#include "attention/sm90/forward/engine.h"
#include "attention/sm90/scores.h"
#include "core/cuda/hopper.cuh"
#include "core/cuda/sm90/pipeline.cuh"
#include "core/cuda/sm90/work_queue.cuh"
#include "core/row_blocks.h"

namespace transformer_kernels::cuda {

struct HopperForward {
  CUtensorMap q, k, v, out;
  AttentionForwardProblem problem;
  RowBlocks blocks;
  int blocks_per_head;  // of one sequence; with offsets, of all
  int section;          // heads in a section of the order of tiles
  WorkQueue tiles;
  int left, right;       // window, kNoBound where there is no bound
  int q_boxes, v_boxes;  // loads of a row: 1, or one for each slab of 64 columns
  int heads_per_kv_head;
  float outer;  // what scores are multiplied with: then they are those of the definition
  float inverse_outer;
  float scale;  // and in units of Exponent

  // Where there are features:
  unsigned features;
  float inner;          // what a product is multiplied with before anything else
  float unit;           // what is multiplied with it before the bias is added
  float added;          // 1 over it: what is added before is in units of this
  float kept;           // 1 over the probability that dropout keeps an element
  bool batches_inside;  // tiles of one head and all batches follow each other
  int map_bytes;        // of a block, for one warpgroup, that TMA loads
  LoadedMap bias, mask;

  // The band of keys that the queries of a sequence see.
  __device__ __forceinline__ Band band(int shift, int keys) const {
    return {shift, left, right, keys};
  }
};

// kWindow: causal and windows.
template <class T, int kPlanIndex, bool kTheWindow>
struct HopperForwardConfig {
  using Element = T;
  static constexpr HopperForwardPlan kPlan = kHopperForwardPlans[kPlanIndex];
  static constexpr bool kWindow = kTheWindow;
  static constexpr unsigned kFeatures = kPlan.features;
  static constexpr bool kHasFeatures = kFeatures != 0;
  static constexpr bool kLoadsMaps = (kFeatures & kMaps) != 0;
  static constexpr bool kShifts = (kFeatures & kAlibi) != 0;  // a row's scores by one number

  static constexpr int kGroups = kPlan.groups;
  static constexpr int kKeys = kPlan.block_keys;
  static constexpr int kRowBytes = kPlan.slabs() * kSwizzleRow;
  static constexpr int kGroupBytes = 64 * kRowBytes;  // q of one warpgroup
  static constexpr int kBlockBytes = kKeys * kRowBytes;
  static constexpr int kMapBytes = kPlan.map_slabs * kMapSlabBytes;  // of one warpgroup
};

// The description of a tile that all warps of a CTA read. Queries and keys count from the begin of
// their sequence.
struct alignas(16) ForwardTile {
  int query;  // the first
  int batch;  // -1: there is none any more
  int head;
  int end;  // blocks of keys: from begin up to end
  int begin;
  int queries;  // of the sequence
  int keys;
  int q_begin;  // where the sequence begins among the rows of q
};

// A warpgroup's part of out leaves from where its q was. Bias and mask come for each warpgroup into
// maps of its own, as warpgroups are not in step; dropout draws at the end of those.
template <class C>
struct alignas(1024) ForwardStorage {
  static constexpr int kTiles = C::kPlan.q_buffers;
  static constexpr int kStages = C::kPlan.stages;
  using Queries = Pipeline<kTiles, C::kGroups * C::kGroupBytes>;
  using Keys = Pipeline<kStages, C::kBlockBytes>;
  using Maps = Pipeline<1, C::kMapBytes>;

  unsigned char q[kTiles][C::kGroups][C::kGroupBytes];
  unsigned char k[kStages][C::kBlockBytes];
  unsigned char v[kStages][C::kBlockBytes];
  [[no_unique_address]] std::array<unsigned char, C::kGroups * C::kMapBytes> maps;
  ForwardTile tiles[kTiles];
  PipelineBarriers<kTiles> q_barriers;
  PipelineBarriers<kStages> k_barriers;
  PipelineBarriers<kStages> v_barriers;
  std::uint64_t out_full[kTiles][C::kGroups];
  PipelineBarriers<1> map_barriers[C::kGroups];

  __device__ __forceinline__ Queries queries() const { return {q, q_barriers}; }
  __device__ __forceinline__ Keys keys() const { return {k, k_barriers}; }
  __device__ __forceinline__ Keys values() const { return {v, v_barriers}; }
  // The maps of one warpgroup.
  __device__ __forceinline__ Maps maps_of(int group) const {
    return {maps.data() + group * C::kMapBytes, map_barriers[group]};
  }
  __device__ __forceinline__ std::uint32_t out_full_of(int buffer, int group) const {
    return shared_address(&out_full[buffer][group]);
  }

  __device__ __forceinline__ void init_barriers() const {
    queries().init(C::kLoadsMaps ? 3 : 2);
    keys().init(4 * C::kGroups);
    values().init(4 * C::kGroups);
    for (int i = 0; i < kTiles * C::kGroups; ++i) mbarrier_init(out_full_of(0, i), 128);
    if constexpr (C::kLoadsMaps) {
      for (int i = 0; i < C::kGroups; ++i) maps_of(i).init(4);
    }
    fence_mbarrier_init();
  }
};

}  // namespace transformer_kernels::cuda
