// SPDX-License-Identifier: MIT
// Declarations that the roles of the backward kernel share: its configuration, shared memory and
// barriers, and the work items that the scheduler hands out.
#pragma once

#include "attention/sm90/backward/engine.h"
#include "attention/sm90/backward/geometry.h"
#include "attention/sm90/scores.h"
#include "core/cuda/hopper.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/cuda/sm90/swizzle.cuh"

namespace transformer_kernels::cuda {

// Slabs of 64 columns that a head has in shared memory, at most.
inline constexpr int kMostSlabs = 4;

// A work item of the scheduler: a query head of a tile. The heads of a group come one after
// another.
struct WorkItem {
  static constexpr int kFirst = 1, kLast = 2, kParity = 4;
  // Words of an item in shared memory.
  static constexpr int kTile = 0, kKvHead = 1, kBatch = 2, kHead = 3, kBits = 4, kSequence = 5,
                       kPlace = 9;

  KeyTile tile;  // an index of -1 ends the work
  int head;
  int bits;  // whether it is the first or the last head of its tile; the parity of the tile
  // In ragged configurations alone:
  IntSequence sequence;
  int place;  // of the head's first block of queries

  __device__ bool none() const { return tile.index < 0; }
  __device__ bool first() const { return bits & kFirst; }
  __device__ bool last() const { return bits & kLast; }
  __device__ std::uint32_t parity() const { return bits & kParity ? 1 : 0; }
};

// The features of scores beside a scale, and dropout: see ScoreScales.
struct BackwardFeatures {
  AttentionProblem problem;
  LoadedMap bias, mask;
  std::uint32_t map_bytes;  // of a block, that TMA loads
  bool capped;              // whether there is a softcap: comparing doubles takes long
  float inner;
  float unit;
  float added;  // 1 over it: what is added before is in units of this
  float outer;
  float outer_in_bits;  // outer * log2(e)
  float grown_by;       // what elements that dropout keeps are multiplied with
};

struct HopperBackward {
  // Boxes of 64 rows and 64 columns, by slab, see map_of(). Clusters store by the first ones of dk
  // and dv.
  CUtensorMap q[kMostSlabs], k[kMostSlabs], v[kMostSlabs], dout[kMostSlabs];
  CUtensorMap dk[2], dv[2];
  BackwardGeometry geometry;
  // Statistics of each block of queries, in the order of stat_place(): lse in bits, then -delta /
  // grown_by.
  const float* statistics;
  const void* lse;  // of far rows; lse_rest may be null
  const void* lse_rest;
  float* dq;         // sums over tiles, each block in the order of a thread's sums
  int* next_tile;    // all below are 0 at first
  int* tiles_added;  // of each block, and each half of dq that is made at once; or null
  float scale;
  float scale_in_bits;  // scale * log2(e)
  BackwardFeatures features;
};
static_assert(sizeof(HopperBackward) <= 4096);  // of parameters, that every driver passes

template <class T_, int kDim_, BackwardVariant kVariant_>
struct HopperBackwardConfig {
  using T = T_;
  static constexpr int kDim = kDim_;  // columns in shared memory, 64 or 128
  static constexpr BackwardVariant kVariant = kVariant_;
  static constexpr bool kRagged =
      kVariant >= BackwardVariant::kRagged;  // items bring their sequence
  static constexpr bool kHasFeatures = kVariant >= BackwardVariant::kScores;
  static constexpr bool kWeights = kVariant == BackwardVariant::kWeights;
  // The warpgroup for dq draws the bits of dropout, while it would wait: see drawer.cuh.
  static constexpr bool kDraws = kVariant == BackwardVariant::kDropout;
  static constexpr bool kKeepsWeights = kWeights || kDraws;  // of dS, in shared memory
  static constexpr int kSlabs = kDim / 64;
  static constexpr int kConsumers = 2;  // warpgroups, of 64 keys each
  static constexpr int kConsumerWarps = 4 * kConsumers;
  // A warpgroup of its own makes dq, instead of the consumers; with 64 columns sums are those of
  // dQ^T: see dq.cuh.
  static constexpr bool kHasDqMaker = kVariant < BackwardVariant::kRagged;
  static constexpr bool kDqTransposed = kHasDqMaker && kDim <= 64;
  static constexpr int kDqWarps = kHasDqMaker ? 4 : 0;
  static constexpr int kThreads = 128 + 32 * (kConsumerWarps + kDqWarps);
  // Registers of a thread. The sums of a consumer take 2 kDim and more; the rest is for the
  // producers.
  static constexpr int kConsumerRegisters =
      kHasDqMaker ? (kDim > 64 ? 208 : 200) : (kDim > 64 ? 240 : 232);
  static constexpr int kDqRegisters = !kHasDqMaker ? 0 : kDim > 64 ? 72 : 88;
  static constexpr int kProducerRegisters = kHasDqMaker || kDim > 64 ? 24 : 40;
  // A kernel starts with equal shares of the registers, in steps of 8: no more are there to take.
  static_assert(128 * (kConsumers * kConsumerRegisters + kDqRegisters + kProducerRegisters) <=
                kThreads * (65536 / kThreads / 8 * 8));
  // S^T of the next block is made beside dV, so that its exponentials run while dK and dQ are made.
  // With 128 columns there are no registers for that: see step_behind() and step_beside().
  static constexpr bool kScoresAhead = kDim <= 64;
  // Sums of dP^T begin with -delta, unless dropout comes between: that leaves more registers while
  // dS is made, and so room for the range of unmasked blocks in step_beside().
  static constexpr bool kDpBegun = kHasDqMaker && !kScoresAhead && !kDraws;
  // K and V are read from registers, which halves what S^T and dP^T take of shared memory: so many
  // steps of 16 columns. Beside a warpgroup for dq there is no room for the last step of V.
  static constexpr int kKeptOfK = kScoresAhead ? 4 : 0;
  static constexpr int kKeptOfV = kDqTransposed ? 3 : kKeptOfK;
  // The second consumer begins an item later than the first, so that each has products while the
  // other has none; and each keeps the range of blocks that its mask does not touch. For packed
  // sequences there are no registers for either, in a variant of 128 columns none for the range.
  static constexpr bool kStaggered = kVariant != BackwardVariant::kRagged;
  static constexpr bool kKeepsRange = kStaggered && (kDim <= 64 || kHasDqMaker || kWeights);
  // Sums of dq leave by way of shared memory, from where a producer adds them when it is their
  // turn: who makes them never waits for a turn, only for a free buffer.
  static constexpr bool kSumsInShared =
      kVariant == BackwardVariant::kOrdered || (kDraws && kDim <= 64);
  static constexpr int kSumStages = kSumsInShared ? 2 : 0;  // of a ring, one for each producer
  // The first tile of a block stores its sums, so that dq need not be cleared first.
  static constexpr bool kStoresFirst = kSumsInShared;
  // The compiler issues the sums of dq behind the products that follow. Kept before them they leave
  // sooner, which is worth 7 %.
  static constexpr bool kSumsFirst = !kWeights;
  // Blocks of q live from the product before their own until the last one, those of dout shorter.
  static constexpr int kQStages = 4;
  static constexpr int kDoutStages = 2;
  static constexpr int kDsStages = 2;
  // Bits of dropout are drawn one block ahead: those of the block before last are no longer read.
  static constexpr int kBitStages = kDraws ? 2 : 0;
  static constexpr int kItemStages = 2;
  static constexpr int kItemWords = kRagged ? 16 : 8;

  // Bytes. 64 rows are kSlabs slabs of 64 columns, the 128 bytes of a swizzled row.
  static constexpr int kSlabBytes = 64 * kSwizzleRow;
  static constexpr int kRowsBytes = kSlabs * kSlabBytes;
  static constexpr int kKeysBytes = kConsumers * kRowsBytes;
  static constexpr int kDsBytes = kConsumers * kSlabBytes;
  static constexpr int kStatisticBytes = 2 * kBlockQueries * 4;
  static constexpr int kSliceSums = 64 * kBlockQueries;  // of dq, that a consumer makes at once
  static constexpr int kSliceBytes = kSliceSums * 4;
  static constexpr int kBitBytes = kBlockQueries * kTileKeys / 8;
  // Weights of the block at work, then slabs of bias and mask of the next one.
  static constexpr int kWeightSlabs = kKeepsWeights ? 2 : 0;
  static constexpr int kMapSlabs = !kHasFeatures ? 0 : (kDim > 64 ? 4 : 7) - kWeightSlabs;

  // Offsets in shared memory.
  static constexpr int kK = 0;
  static constexpr int kV = kK + kKeysBytes;
  static constexpr int kQ = kV + kKeysBytes;
  static constexpr int kDout = kQ + kQStages * kRowsBytes;
  static constexpr int kDs = kDout + kDoutStages * kRowsBytes;
  static constexpr int kWeightsAt = kDs + kDsStages * kDsBytes;
  static constexpr int kMaps = kWeightsAt + kWeightSlabs * kMapSlabBytes;
  static constexpr int kSums = kMaps + kMapSlabs * kMapSlabBytes;
  static constexpr int kStatistics = kSums + kConsumers * kSumStages * kSliceBytes;
  static constexpr int kBits = kStatistics + kQStages * kStatisticBytes;
  static constexpr int kItem = kBits + kBitStages * kBitBytes;
  static constexpr int kBarriers = kItem + kItemStages * kItemWords * 4;

  // Barriers.
  static constexpr int kKeysFull = 0;
  static constexpr int kKeysEmpty = 1;
  static constexpr int kItemFull = 2;
  static constexpr int kItemEmpty = kItemFull + kItemStages;
  static constexpr int kQFull = kItemEmpty + kItemStages;
  static constexpr int kQEmpty = kQFull + kQStages;
  static constexpr int kDoutFull = kQEmpty + kQStages;
  static constexpr int kDoutEmpty = kDoutFull + kDoutStages;
  static constexpr int kDsFull = kDoutEmpty + kDoutStages;
  static constexpr int kDsEmpty = kDsFull + kDsStages;
  static constexpr int kBegun = kDsEmpty + kDsStages;  // one an item
  static constexpr int kTurn = kBegun + kItemStages;   // one a consumer, as the next
  static constexpr int kAdded = kTurn + kConsumers;
  static constexpr int kMapsFull = kAdded + kConsumers;
  static constexpr int kMapsEmpty = kMapsFull + 1;
  static constexpr int kSumsFull = kMapsEmpty + 1;  // a ring a consumer, as the next
  static constexpr int kSumsEmpty = kSumsFull + kConsumers * kSumStages;
  static constexpr int kBitsFull = kSumsEmpty + kConsumers * kSumStages;
  static constexpr int kBarrierCount = kBitsFull + kBitStages;

  static constexpr int kSharedBytes = (kBarriers + kBarrierCount * 8 + 15) / 16 * 16;
  static_assert(kSharedBytes <= 227 * 1024);

  // Whether dq is summed up in the order of tiles, and whether who makes it waits for its turns.
  static __device__ __forceinline__ bool ordered(const HopperBackward& p) {
    return kSumsInShared || takes_turns(p);
  }
  static __device__ __forceinline__ bool takes_turns(const HopperBackward& p) {
    return !kSumsInShared && p.tiles_added != nullptr;
  }

  // A consumer makes its 64 columns of dq for every block; with 64 columns in all, every second
  // block's dq. This is the slice of `consumer` in block number `count` of this CTA. A warpgroup of
  // its own leaves dq where that consumer would.
  static constexpr int kSlices = kSlabs;
  static constexpr __device__ bool makes_dq(int consumer, std::uint32_t count) {
    return kSlices == kConsumers || maker_of_dq(count) == consumer;
  }
  static constexpr __device__ int maker_of_dq(std::uint32_t count) {
    return static_cast<int>(count % kConsumers);
  }
  // Among those of a consumer.
  static constexpr __device__ std::uint32_t dq_number(std::uint32_t count) {
    return kSlices == kConsumers ? count : count / kConsumers;
  }
};

extern __shared__ __align__(1024) unsigned char hopper_backward_shared[];

// Stages are powers of two, so that one counter serves rings of all sizes.
template <class C>
struct BackwardShared {
  static __device__ __forceinline__ std::uint32_t at(int offset) {
    return shared_address(hopper_backward_shared) + offset;
  }
  static __device__ __forceinline__ std::uint32_t barrier(int index) {
    return at(C::kBarriers) + index * 8;
  }
  // The barrier of fill number `count` of a ring of kStages; parity() is the parity of its phase.
  template <int kStages>
  static __device__ __forceinline__ std::uint32_t barrier(int first, std::uint32_t count) {
    return barrier(first) + count % kStages * 8;
  }
  template <int kStages>
  static __device__ __forceinline__ std::uint32_t parity(std::uint32_t count) {
    return count / kStages & 1;
  }
  template <int kStages>
  static __device__ __forceinline__ void wait_full(int first, std::uint32_t count) {
    mbarrier_wait(barrier<kStages>(first, count), parity<kStages>(count));
  }
  template <int kStages>
  static __device__ __forceinline__ void wait_empty(int first, std::uint32_t count) {
    mbarrier_wait(barrier<kStages>(first, count), parity<kStages>(count) ^ 1);
  }

  static __device__ __forceinline__ void init_barriers(bool ordered) {
    const auto init = [](int first, int count, int arrivals) {
      for (int i = 0; i < count; ++i) mbarrier_init(barrier(first + i), arrivals);
    };
    const int readers = 1 + C::kConsumerWarps + C::kDqWarps + (ordered ? C::kConsumers : 0);
    init(C::kKeysFull, 1, 1);
    init(C::kKeysEmpty, 1, C::kConsumers + C::kDqWarps);
    init(C::kItemFull, C::kItemStages, 1);
    init(C::kItemEmpty, C::kItemStages, readers);
    init(C::kQFull, C::kQStages, 1);
    init(C::kQEmpty, C::kQStages, C::kConsumerWarps);
    init(C::kDoutFull, C::kDoutStages, 1);
    init(C::kDoutEmpty, C::kDoutStages, C::kConsumerWarps);
    init(C::kDsFull, C::kDsStages, C::kConsumerWarps);
    init(C::kDsEmpty, C::kDsStages, C::kHasDqMaker ? C::kDqWarps : C::kConsumerWarps);
    init(C::kBegun, C::kItemStages, C::kConsumerWarps / C::kConsumers);
    init(C::kTurn, C::kConsumers, 1);
    init(C::kAdded, C::kConsumers, 4);
    if constexpr (C::kHasFeatures) {
      init(C::kMapsFull, 1, 1);
      init(C::kMapsEmpty, 1, C::kConsumerWarps);
    }
    init(C::kSumsFull, C::kConsumers * C::kSumStages, 4);
    init(C::kSumsEmpty, C::kConsumers * C::kSumStages, 1);
    init(C::kBitsFull, C::kBitStages, C::kDqWarps);
    fence_mbarrier_init();
  }

  static __device__ __forceinline__ int ds_block(std::uint32_t n) {
    return C::kDs + static_cast<int>(n % C::kDsStages) * C::kDsBytes;
  }

  // A consumer's rings, and where its sums of dq number `n` lie.
  static __device__ __forceinline__ int sums_full(int consumer) {
    return C::kSumsFull + consumer * C::kSumStages;
  }
  static __device__ __forceinline__ int sums_empty(int consumer) {
    return C::kSumsEmpty + consumer * C::kSumStages;
  }
  static __device__ __forceinline__ std::uint32_t sums(int consumer, std::uint32_t n) {
    const int stage = consumer * C::kSumStages + static_cast<int>(n % C::kSumStages);
    return at(C::kSums) + stage * C::kSliceBytes;
  }

  // Bits of dropout of block number `n`.
  static __device__ __forceinline__ std::uint32_t bits(std::uint32_t n) {
    return at(C::kBits + static_cast<int>(n % C::kBitStages) * C::kBitBytes);
  }

  static __device__ __forceinline__ std::uint32_t item_address(std::uint32_t count) {
    return at(C::kItem) + count % C::kItemStages * (C::kItemWords * 4);
  }
  static __device__ __forceinline__ int item_word(std::uint32_t count, int word) {
    return load_shared_int(item_address(count) + 4 * word);
  }
  static __device__ __forceinline__ IntSequence item_sequence(std::uint32_t count) {
    constexpr int kAt = WorkItem::kSequence;
    return {item_word(count, kAt), item_word(count, kAt + 1), item_word(count, kAt + 2),
            item_word(count, kAt + 3)};
  }
  // Waits for and reads this CTA's item of this number.
  static __device__ __forceinline__ WorkItem read_item(std::uint32_t count) {
    wait_full<C::kItemStages>(C::kItemFull, count);
    return peek_item(count);
  }
  // Known to be there.
  static __device__ __forceinline__ WorkItem peek_item(std::uint32_t count) {
    WorkItem item = {{item_word(count, WorkItem::kTile), item_word(count, WorkItem::kKvHead),
                      item_word(count, WorkItem::kBatch)},
                     item_word(count, WorkItem::kHead),
                     item_word(count, WorkItem::kBits)};
    if constexpr (C::kRagged) {
      item.sequence = item_sequence(count);
      item.place = item_word(count, WorkItem::kPlace);
    }
    return item;
  }

  // The values that follow from an item: the geometry of its sequence, the place of its head's
  // block 0 in dq, and boxes of 64 of its rows.
  using Geometry = std::conditional_t<C::kRagged, BackwardGeometry, const BackwardGeometry&>;
  static __device__ __forceinline__ Geometry geometry_of(const HopperBackward& p,
                                                         const WorkItem& item) {
    if constexpr (!C::kRagged) {
      return p.geometry;
    } else {
      return p.geometry.of(item.sequence);
    }
  }
  static __device__ __forceinline__ Geometry geometry_at(const HopperBackward& p,
                                                         std::uint32_t count) {
    if constexpr (!C::kRagged) {
      return p.geometry;
    } else {
      return p.geometry.of(item_sequence(count));
    }
  }
  static __device__ __forceinline__ int place_of(const HopperBackward& p, const WorkItem& item) {
    if constexpr (C::kRagged) return item.place;
    return p.geometry.block_place(item.tile.batch, item.head, 0);
  }
  static __device__ __forceinline__ BoxOrigin box_of_queries(const HopperBackward& p,
                                                             const WorkItem& item, int block) {
    const int row = block * kBlockQueries;
    if constexpr (!C::kRagged) return {0, row, item.head, item.tile.batch, 0};
    return ragged_box(p, item, row, item.sequence.q_begin, item.sequence.queries, item.head);
  }
  // Keys past the end weigh nothing. Where there are no others, the tile's first ones stand in: a
  // ragged box holds a row at least.
  static __device__ __forceinline__ BoxOrigin box_of_keys(const HopperBackward& p,
                                                          const WorkItem& item, int consumer) {
    int key = item.tile.first_key() + 64 * consumer;
    if constexpr (!C::kRagged) return {0, key, item.tile.kv_head, item.tile.batch, 0};
    if (key >= item.sequence.keys) key = item.tile.first_key();
    return ragged_box(p, item, key, item.sequence.k_begin, item.sequence.keys, item.tile.kv_head);
  }
  // TMA clips boxes where a tensor ends, but not where a sequence does. So there are two dimensions
  // for rows: one of 64, which the box enters so late that it ends with the rows that exist, and
  // one for where it stands.
  static __device__ __forceinline__ BoxOrigin ragged_box(const HopperBackward& p,
                                                         const WorkItem& item, int row, int begin,
                                                         int rows, int head) {
    const int exist = min(64, rows - row);
    return {0, 64 - exist, head, begin + row + exist, p.geometry.q_offsets ? 0 : item.tile.batch};
  }

  // The tensor map that loads and stores a slab. A box that lies wholly outside of its tensor has
  // no element, but TMA may still resolve the address at which the map begins, and a ragged map
  // begins 64 rows before its tensor, where there may be no memory. So a slab without columns has a
  // map that begins in the workspace.
  static __device__ __forceinline__ const CUtensorMap& map_of(const CUtensorMap* maps, int slab) {
    return maps[C::kRagged ? slab : 0];
  }

  static __device__ __forceinline__ int tile_index(std::uint32_t count) {
    return item_word(count, WorkItem::kTile);
  }
  static __device__ __forceinline__ void release_item(std::uint32_t count) {
    mbarrier_arrive(barrier<C::kItemStages>(C::kItemEmpty, count));
  }
  static __device__ __forceinline__ void write_item(std::uint32_t count, const WorkItem& item) {
    wait_empty<C::kItemStages>(C::kItemEmpty, count);
    const std::uint32_t to = item_address(count);
    for_each_word(item, [&](int word, int value) { store_shared_int(to + 4 * word, value); });
    mbarrier_arrive(barrier<C::kItemStages>(C::kItemFull, count));
  }
  // Calls store(word, value) for what item_word() finds.
  template <class Store>
  static __device__ __forceinline__ void for_each_word(const WorkItem& item, Store&& store) {
    store(WorkItem::kTile, item.tile.index);
    store(WorkItem::kKvHead, item.tile.kv_head);
    store(WorkItem::kBatch, item.tile.batch);
    store(WorkItem::kHead, item.head);
    store(WorkItem::kBits, item.bits);
    if constexpr (C::kRagged) {
      store(WorkItem::kSequence, item.sequence.queries);
      store(WorkItem::kSequence + 1, item.sequence.keys);
      store(WorkItem::kSequence + 2, item.sequence.q_begin);
      store(WorkItem::kSequence + 3, item.sequence.k_begin);
      store(WorkItem::kPlace, item.place);
    }
  }
};

// A thread of a consumer, whose shared memory is as S says.
template <class C, class S>
struct ConsumerThread : S {
  const int warp;  // of the warpgroup
  const int lane;

  __device__ ConsumerThread(int warp_, int lane_) : warp(warp_), lane(lane_) {}

  // A number that all lanes have the same of, which the compiler has to be told.
  static __device__ __forceinline__ int same(int v) { return __reduce_max_sync(kAllLanes, v); }
  // same() of what an item holds, or, where that is a lot, of what follows from it.
  static __device__ __forceinline__ int same_of_item(int v) { return C::kRagged ? v : same(v); }
  static __device__ __forceinline__ int same_result(int v) { return C::kRagged ? same(v) : v; }
  static __device__ __forceinline__ WorkItem same(WorkItem item) {
    item.tile = {same(item.tile.index), same(item.tile.kv_head), same(item.tile.batch)};
    item.head = same(item.head);
    item.bits = same(item.bits);
    return item;
  }
  static __device__ __forceinline__ std::uint32_t uniform(std::uint32_t address) {
    return __shfl_sync(kAllLanes, address, 0);
  }
  static __device__ __forceinline__ std::uint64_t rows_of(int block) {
    return matrix_descriptor(uniform(S::at(block)));
  }
  static __device__ __forceinline__ std::uint64_t columns_of(int block) {
    return matrix_descriptor(uniform(S::at(block)), C::kSlabBytes);
  }

  // How far behind the first keys of K those of a step of 16 lie, in units of a descriptor.
  static constexpr __device__ int key_step(int step) {
    return step / 4 * (C::kRowsBytes / 16) + step % 4 * 128;
  }

  template <int kStages>
  __device__ __forceinline__ void release(int first, std::uint32_t n) const {
    if (lane == 0) mbarrier_arrive(S::template barrier<kStages>(first, n));
  }

  // Sums of dq lie in a slice of a block as they do in registers, each warp's in 4 KB of its own.
  static __device__ __forceinline__ int first_sum(int of_warp, int of_lane) {
    return of_warp * 1024 + of_lane * 4;
  }
  static constexpr int kSumStep = 128;

  // Adds them to a slice of a block in memory.
  __device__ __forceinline__ void add_sums(const HopperBackward& p, int place, int slice,
                                           const float (&sums)[32]) const {
    float* const to = p.dq + static_cast<std::int64_t>(place * C::kSlices + slice) * C::kSliceSums +
                      first_sum(warp, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* const of = sums + 4 * i;
      global_reduce_add(to + i * kSumStep, make_float4(of[0], of[1], of[2], of[3]));
    }
  }
  // Around sums number `n` of a consumer, where tiles add to dq in turns.
  static __device__ __forceinline__ void begin_turn(int consumer, std::uint32_t n) {
    S::template wait_full<1>(C::kTurn + consumer, n);
  }
  __device__ __forceinline__ void end_turn(int consumer) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(S::barrier(C::kAdded + consumer));
  }

  // Sixteen rows of a warp to shared memory, two matrices of 16 columns at a time.
  __device__ __forceinline__ void store_columns(int rows, int columns_16,
                                                const std::uint32_t* words) const {
    const std::uint32_t slab = S::at(rows + columns_16 / 4 * C::kSlabBytes);
    store_matrices(swizzled_16x16<kSwizzleRow>(slab, 16 * warp, columns_16 % 4 * 2, lane), words[0],
                   words[1], words[2], words[3]);
  }

  __device__ __forceinline__ void store_gradient(int rows, const float (&sums)[C::kDim / 2],
                                                 float factor) const {
#pragma unroll
    for (int i = 0; i < C::kDim / 16; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float pair[2] = {sums[8 * i + 2 * j] * factor, sums[8 * i + 2 * j + 1] * factor};
        words[j] = narrow_word<typename C::T>(pair);
      }
      store_columns(rows, i, words);
    }
  }
};

}  // namespace transformer_kernels::cuda
