// SPDX-License-Identifier: MIT
// Tiles of the forward pass on sm_90a: what they are, in which order CTAs take them, and the two
// threads that move their data.
#pragma once

#include "attention/sm90/forward/engine.h"
#include "attention/sm90/scores.h"
#include "core/cuda/hopper.cuh"
#include "core/cuda/tile_ring.cuh"
#include "core/row_blocks.h"

namespace transformer_kernels::cuda {

struct HopperForward {
  CUtensorMap q, k, v, out;
  AttentionForwardProblem problem;
  RowBlocks blocks;
  int blocks_per_head;  // of one sequence; with offsets, of all
  int tiles;
  int section;           // heads in a section of the order of tiles
  int* counter;          // tiles taken beyond the first of each CTA; null: there are none
  int left, right;       // window, kNoBound where there is no bound
  int q_boxes, v_boxes;  // loads of a row: 1, or one for each slab of 64 columns
  int heads_per_kv_head;
  float scale;  // what scores are multiplied with: then they are in units of Exponent

  // Where there are features:
  unsigned features;
  float inner;          // what a product is multiplied with before anything else
  float added;          // what is added to a score is in units of this
  float kept;           // 1 over the probability that dropout keeps an element
  bool batches_inside;  // tiles of one head and all batches follow each other
  int map_bytes;        // of a block, for one warpgroup, that TMA loads
  LoadedMap bias, mask;
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

  static constexpr int kGroups = kPlan.groups;
  static constexpr int kKeys = kPlan.block_keys;
  static constexpr int kRowBytes = kPlan.slabs() * kSwizzleRow;
  static constexpr int kGroupBytes = 64 * kRowBytes;  // q of one warpgroup
  static constexpr int kBlockBytes = kKeys * kRowBytes;
  static constexpr int kMapBytes = kPlan.map_slabs * kMapSlabBytes;  // of one warpgroup

  // Shared memory. A stage of a ring has two barriers.
  static constexpr int kTileBytes = 32;
  static constexpr int kK = kPlan.q_buffers * kGroups * kGroupBytes;
  static constexpr int kV = kK + kPlan.stages * kBlockBytes;
  static constexpr int kMapsAt = kV + kPlan.stages * kBlockBytes;
  static constexpr int kTileAt = kMapsAt + kGroups * kMapBytes;
  static constexpr int kQBarriers = kTileAt + kPlan.q_buffers * kTileBytes;
  static constexpr int kKBarriers = kQBarriers + kPlan.q_buffers * 16;
  static constexpr int kVBarriers = kKBarriers + kPlan.stages * 16;
  static constexpr int kOutBarriers = kVBarriers + kPlan.stages * 16;
  static constexpr int kMapBarriers = kOutBarriers + kPlan.q_buffers * kGroups * 8;
  static constexpr int kSharedBytes = kMapBarriers + (kLoadsMaps ? kGroups * 16 : 0);
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ------------------------------------------------------------------ tiles

// What the warps of a CTA have to know of a tile. Queries and keys count from the begin of their
// sequence.
struct __align__(16) ForwardTile {
  int query;  // the first
  int batch;  // -1: there is none any more
  int head;
  int end;  // blocks of keys: from begin up to end
  int begin;
  int queries;  // of the sequence
  int keys;
  int q_begin;  // where the sequence begins among the rows of q
};

// Keys that one of the queries from `first` to `last` sees.
template <class C>
__device__ __forceinline__ IntRange seen_keys(const HopperForward& p, int first, int last,
                                              int shift, int keys) {
  if constexpr (!C::kWindow) return {0, keys};
  return {max(first + shift - p.left, 0), min(last + shift + p.right + 1, keys)};
}

__device__ __forceinline__ int shift_of(const HopperForward& p, int queries, int keys) {
  return p.problem.bottom_right ? keys - queries : 0;
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
  const IntRange seen = seen_keys<C>(p, t.query, last, shift_of(p, t.queries, t.keys), t.keys);
  if (seen.begin < seen.end) {
    t.begin = seen.begin / C::kKeys;
    t.end = (seen.end + C::kKeys - 1) / C::kKeys;
  }
  return t;
}

// The first tile of a CTA is that of its own number. Then it takes the next that no CTA has.
__device__ __forceinline__ int next_tile(const HopperForward& p) {
  const int taken = p.counter == nullptr ? 0 : atomicAdd(p.counter, 1);
  return static_cast<int>(gridDim.x) + taken;
}

// ------------------------------------------------------------------ moving data

template <class C>
struct ForwardShared {
  using QRing = TileRing<C::kPlan.q_buffers, C::kGroups * C::kGroupBytes>;
  using KeyRing = TileRing<C::kPlan.stages, C::kBlockBytes>;
  using MapRing = TileRing<1, C::kMapBytes>;

  std::uint32_t base;

  __device__ __forceinline__ QRing q() const { return {base, base + C::kQBarriers}; }
  __device__ __forceinline__ KeyRing k() const { return {base + C::kK, base + C::kKBarriers}; }
  __device__ __forceinline__ KeyRing v() const { return {base + C::kV, base + C::kVBarriers}; }
  // Of one warpgroup.
  __device__ __forceinline__ MapRing maps(int group) const {
    return {base + C::kMapsAt + group * C::kMapBytes, base + C::kMapBarriers + group * 16};
  }
  __device__ __forceinline__ std::uint32_t tile(int buffer) const {
    return base + C::kTileAt + buffer * C::kTileBytes;
  }
  // A warpgroup's part of out lies where its q was.
  __device__ __forceinline__ std::uint32_t out_full(int buffer, int group) const {
    return base + C::kOutBarriers + 8 * (buffer * C::kGroups + group);
  }

  __device__ __forceinline__ void init() const {
    q().init(C::kLoadsMaps ? 3 : 2);
    k().init(4 * C::kGroups);
    v().init(4 * C::kGroups);
    for (int i = 0; i < C::kPlan.q_buffers * C::kGroups; ++i) {
      mbarrier_init(out_full(0, i), 128);
    }
    if constexpr (C::kLoadsMaps) {
      for (int i = 0; i < C::kGroups; ++i) maps(i).init(4);
    }
    fence_mbarrier_init();
  }

  __device__ __forceinline__ void publish(int buffer, const ForwardTile& t) const {
    store_shared(tile(buffer), make_uint4(t.query, t.batch, t.head, t.end));
    store_shared(tile(buffer) + 16, make_uint4(t.begin, t.queries, t.keys, t.q_begin));
  }

  __device__ __forceinline__ ForwardTile read(int buffer) const {
    const uint4 a = load_shared(tile(buffer));
    const uint4 b = load_shared(tile(buffer) + 16);
    const auto of = [](std::uint32_t word) { return static_cast<int>(word); };
    return {of(a.x), of(a.y), of(a.z), of(a.w), of(b.x), of(b.y), of(b.z), of(b.w)};
  }
};

// `rows` rows, all columns.
template <class C>
__device__ __forceinline__ void load_rows(std::uint32_t to, const CUtensorMap& map, int boxes,
                                          int rows, int row, int head, int batch,
                                          std::uint32_t barrier, std::uint64_t policy) {
#pragma unroll 1
  for (int i = 0; i < boxes; ++i) {
    tensor_load(to + i * rows * kSwizzleRow, map, {64 * i, row, 0, head, batch}, barrier, policy);
  }
}

// Loads the blocks of k, or of v, of a tile: last one first.
template <class C>
__device__ __forceinline__ void load_blocks(const HopperForward& p, const ForwardTile& t,
                                            typename ForwardShared<C>::KeyRing& ring,
                                            const CUtensorMap& map, int boxes) {
  const std::uint64_t again = l2_evict_last();
  const bool varlen = p.blocks.offsets != nullptr;
  const int head = t.head / p.heads_per_kv_head;
  int row = (varlen ? p.problem.k_offsets[t.batch] : 0) + t.end * C::kKeys;
#pragma unroll 1
  for (int left = t.end - t.begin; left > 0; --left) {
    row -= C::kKeys;
    ring.wait_empty();
    mbarrier_arrive_expect(ring.full(), C::kBlockBytes);
    load_rows<C>(ring.data(), map, boxes, C::kKeys, row, head, varlen ? 0 : t.batch, ring.full(),
                 again);
    ring.advance();
  }
}

// One thread: it finds the tiles, and tells the others of each when q's buffer is free.
template <class C>
__device__ __forceinline__ void load_q_and_k(const HopperForward& p,
                                             const ForwardShared<C>& shared) {
  typename ForwardShared<C>::QRing q = shared.q();
  typename ForwardShared<C>::KeyRing k = shared.k();
  for (int index = blockIdx.x; index < p.tiles; index = next_tile(p)) {
    const ForwardTile t = tile_at<C>(p, index);
    if (t.query >= t.queries) continue;
    q.wait_empty();
    shared.publish(q.stage(), t);
    mbarrier_arrive_expect(q.full(), C::kGroups * C::kGroupBytes);
#pragma unroll 1
    for (int i = 0; i < C::kGroups; ++i) {
      load_rows<C>(q.data() + i * C::kGroupBytes, p.q, p.q_boxes, 64, t.q_begin + t.query + 64 * i,
                   t.head, p.blocks.offsets ? 0 : t.batch, q.full(), l2_evict_first());
    }
    q.advance();
    load_blocks<C>(p, t, k, p.k, p.q_boxes);
  }
  q.wait_empty();
  shared.publish(q.stage(), {.batch = -1});
  mbarrier_arrive(q.full());
}

// Calls body(tile) for the tiles that load_q_and_k() finds. One thread. It frees q's buffer as well
// as the one that stores, so a tile cannot change under it.
template <class C, class Body>
__device__ __forceinline__ void for_each_tile(const ForwardShared<C>& shared, Body&& body) {
  typename ForwardShared<C>::QRing q = shared.q();
  for (;;) {
    q.wait_full();
    const ForwardTile t = shared.read(q.stage());
    if (t.batch < 0) break;
    mbarrier_arrive(q.empty());
    q.advance();
    body(t);
  }
}

// One thread.
template <class C>
__device__ __forceinline__ void load_v(const HopperForward& p, const ForwardShared<C>& shared) {
  typename ForwardShared<C>::KeyRing v = shared.v();
  for_each_tile(shared, [&](const ForwardTile& t) { load_blocks<C>(p, t, v, p.v, p.v_boxes); });
}

// 64 rows of bias or mask, kKeys columns from `key` on.
template <class C>
__device__ __forceinline__ void load_map(const LoadedMap& map, std::uint32_t to,
                                         const ForwardTile& t, int query, int key,
                                         std::uint32_t barrier) {
  if (map.slab_keys == 0) return;
  std::uint32_t slab = to + map.place * kMapSlabBytes;
#pragma unroll 1
  for (int i = 0; i < C::kKeys; i += map.slab_keys, slab += kMapSlabBytes) {
    tensor_load(slab, map.map,
                {key + i, query, t.head * map.head_step, t.batch * map.batch_step, 0}, barrier,
                l2_evict_first());
  }
}

// One thread: bias and mask, for each warpgroup into its own room, as they are not in step.
template <class C>
__device__ __forceinline__ void load_maps(const HopperForward& p, const ForwardShared<C>& shared) {
  int phase = 0;
  for_each_tile(shared, [&](const ForwardTile& t) {
    if (p.map_bytes == 0) return;
#pragma unroll 1
    for (int block = t.end - 1; block >= t.begin; --block, phase ^= 1) {
#pragma unroll 1
      for (int group = 0; group < C::kGroups; ++group) {
        const typename ForwardShared<C>::MapRing ring = shared.maps(group);
        mbarrier_wait(ring.empty(), phase ^ 1);
        mbarrier_arrive_expect(ring.full(), p.map_bytes);
        const int query = t.query + 64 * group;
        load_map<C>(p.bias, ring.data(), t, query, block * C::kKeys, ring.full());
        load_map<C>(p.mask, ring.data(), t, query, block * C::kKeys, ring.full());
      }
    }
  });
}

// Whether TMA stores these 64 rows: it clips at the end of a tensor, but not at that of a sequence.
__device__ __forceinline__ bool stored_by_tma(const HopperForward& p, const ForwardTile& t,
                                              int query) {
  return p.blocks.offsets == nullptr ? query < t.queries : query + 64 <= t.queries;
}

// One thread.
template <class C>
__device__ __forceinline__ void store_tiles(const HopperForward& p,
                                            const ForwardShared<C>& shared) {
  typename ForwardShared<C>::QRing q = shared.q();
  for (;;) {
    ForwardTile t;
#pragma unroll 1
    for (int i = 0; i < C::kGroups; ++i) {
      mbarrier_wait(shared.out_full(q.stage(), i), q.phase());
      t = shared.read(q.stage());
      const int query = t.query + 64 * i;
      if (t.batch < 0 || !stored_by_tma(p, t, query)) continue;
      for (int box = 0; box < p.v_boxes; ++box) {
        tensor_store(
            p.out,
            {64 * box, t.q_begin + query, 0, t.head, p.blocks.offsets == nullptr ? t.batch : 0},
            q.data() + i * C::kGroupBytes + box * 64 * kSwizzleRow);
      }
      bulk_commit();
    }
    if (t.batch < 0) break;
    bulk_wait_read<0>();
    mbarrier_arrive(q.empty());
    q.advance();
  }
  bulk_wait<0>();
}

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
