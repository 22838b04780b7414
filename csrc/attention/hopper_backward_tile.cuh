// SPDX-License-Identifier: MIT
// What the roles of the backward kernel on Hopper share: its shared memory, its barriers, and the
// tiles that the scheduler hands out.
#pragma once

#include "attention/hopper_backward_plan.h"
#include "core/cuda/hopper.cuh"
#include "core/cuda/reduce.cuh"

namespace transformer_kernels::cuda {

// What the scheduler hands out: a query head of a tile. The heads of a group come one after
// another. In shared memory an item is eight words.
struct BackwardItem {
  static constexpr int kFirst = 1, kLast = 2, kParity = 4, kWords = 8;

  KeyTile tile;  // an index of -1 ends the work
  int head;
  int bits;  // whether it is the first or the last head of its tile; the parity of the tile

  __device__ bool none() const { return tile.index < 0; }
  __device__ bool first() const { return bits & kFirst; }
  __device__ bool last() const { return bits & kLast; }
  __device__ std::uint32_t parity() const { return bits & kParity ? 1 : 0; }
};

struct HopperBackward {
  CUtensorMap q, k, v, dout, dk, dv;  // boxes of 64 rows and 64 columns
  HopperBackwardPlan plan;
  // Of each block of queries, in the order of stat_place(): lse in bits, then -delta.
  const float* statistics;
  float* dq;         // sums over tiles, each block in the order of a thread's sums
  int* next_tile;    // all below are 0 at first
  int* tiles_added;  // of each block, and each half of dq that is made at once
  float scale;
  float scale_in_bits;  // scale * log2(e)
};

template <class T_, int kDim_, bool kOrdered_>
struct HopperBackwardConfig {
  using T = T_;
  static constexpr int kDim = kDim_;           // columns in shared memory, 64 or 128
  static constexpr bool kOrdered = kOrdered_;  // dq is summed up in the order of tiles
  static constexpr int kChunks = kDim / 64;
  static constexpr int kConsumers = 2;  // warpgroups, of 64 keys each
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  // Of a thread. The sums of a consumer take 2 kDim and more; what is left is for the producers.
  static constexpr int kConsumerRegisters = kDim > 64 ? 240 : 232;
  static constexpr int kProducerRegisters = kDim > 64 ? 24 : 40;
  // dS leaves before dK begins, the shorter way to the next block's dQ. With 128 columns there are
  // no registers for that: it leaves while S and dK are made.
  static constexpr bool kStoresDsFirst = kDim <= 64;
  // Blocks of q live from the product before their own until the last one, those of dout shorter.
  static constexpr int kQStages = 4;
  static constexpr int kDoutStages = 2;
  static constexpr int kDsStages = 2;
  static constexpr int kItemStages = 2;

  // Bytes. 64 rows are kChunks pieces of 64 columns.
  static constexpr int kChunkBytes = 64 * kSwizzleRow;
  static constexpr int kRowsBytes = kChunks * kChunkBytes;
  static constexpr int kKeysBytes = kConsumers * kRowsBytes;
  static constexpr int kDsBytes = kConsumers * kChunkBytes;
  static constexpr int kStatisticBytes = 2 * kBlockQueries * 4;

  // Offsets in shared memory.
  static constexpr int kK = 0;
  static constexpr int kV = kK + kKeysBytes;
  static constexpr int kQ = kV + kKeysBytes;
  static constexpr int kDout = kQ + kQStages * kRowsBytes;
  static constexpr int kDs = kDout + kDoutStages * kRowsBytes;
  static constexpr int kStatistics = kDs + kDsStages * kDsBytes;
  static constexpr int kItem = kStatistics + kQStages * kStatisticBytes;
  static constexpr int kBarriers = kItem + kItemStages * BackwardItem::kWords * 4;

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
  static constexpr int kTurn = kDsEmpty + kDsStages;  // one a consumer, as the next
  static constexpr int kAdded = kTurn + kConsumers;
  static constexpr int kBarrierCount = kAdded + kConsumers;

  static constexpr int kSharedBytes = kBarriers + kBarrierCount * 8;

  // A consumer makes its 64 columns of dq for every block; with 64 columns in all, every second
  // block's dq. This is the share of `consumer` in block number `count` of this CTA.
  static constexpr int kShares = kChunks;
  static constexpr __device__ bool makes_dq(int consumer, std::uint32_t count) {
    return kShares == kConsumers || static_cast<int>(count % kConsumers) == consumer;
  }
  static constexpr __device__ std::uint32_t dq_parity(std::uint32_t count) {
    return kShares == kConsumers ? count & 1 : count / kConsumers & 1;
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
  // Of a ring: the barrier of turn `count`, and the parity with which it fills for that turn.
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

  static __device__ __forceinline__ void init_barriers() {
    const auto init = [](int first, int count, int arrivals) {
      for (int i = 0; i < count; ++i) mbarrier_init(barrier(first + i), arrivals);
    };
    constexpr int kReaders = 1 + C::kConsumerWarps + (C::kOrdered ? C::kConsumers : 0);
    init(C::kKeysFull, 1, 1);
    init(C::kKeysEmpty, 1, C::kConsumers);
    init(C::kItemFull, C::kItemStages, 1);
    init(C::kItemEmpty, C::kItemStages, kReaders);
    init(C::kQFull, C::kQStages, 1);
    init(C::kQEmpty, C::kQStages, C::kConsumerWarps);
    init(C::kDoutFull, C::kDoutStages, 1);
    init(C::kDoutEmpty, C::kDoutStages, C::kConsumerWarps);
    init(C::kDsFull, C::kDsStages, C::kConsumerWarps);
    init(C::kDsEmpty, C::kDsStages, C::kConsumerWarps);
    init(C::kTurn, C::kConsumers, 1);
    init(C::kAdded, C::kConsumers, 4);
    fence_mbarrier_init();
  }

  static __device__ __forceinline__ std::uint32_t item_address(std::uint32_t count) {
    return at(C::kItem) + count % C::kItemStages * (BackwardItem::kWords * 4);
  }
  // Of this CTA, the item of this number.
  static __device__ __forceinline__ BackwardItem read_item(std::uint32_t count) {
    wait_full<C::kItemStages>(C::kItemFull, count);
    const std::uint32_t from = item_address(count);
    return {{load_shared_int(from), load_shared_int(from + 4), load_shared_int(from + 8)},
            load_shared_int(from + 12),
            load_shared_int(from + 16)};
  }
  static __device__ __forceinline__ int tile_index(std::uint32_t count) {
    return load_shared_int(item_address(count));
  }
  static __device__ __forceinline__ void release_item(std::uint32_t count) {
    mbarrier_arrive(barrier<C::kItemStages>(C::kItemEmpty, count));
  }
  static __device__ __forceinline__ void write_item(std::uint32_t count, const BackwardItem& item) {
    wait_empty<C::kItemStages>(C::kItemEmpty, count);
    const std::uint32_t to = item_address(count);
    store_shared_int(to, item.tile.index);
    store_shared_int(to + 4, item.tile.kv_head);
    store_shared_int(to + 8, item.tile.batch);
    store_shared_int(to + 12, item.head);
    store_shared_int(to + 16, item.bits);
    mbarrier_arrive(barrier<C::kItemStages>(C::kItemFull, count));
  }
};

}  // namespace transformer_kernels::cuda
