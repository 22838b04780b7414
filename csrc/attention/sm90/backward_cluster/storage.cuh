// SPDX-License-Identifier: MIT
// Declarations that the roles of the backward cluster kernel share: its configuration, shared
// memory and barriers. A tile of 128 keys belongs to a cluster of two CTAs, 64 keys each: with more
// than 128 columns the registers of an SM hold dk and dv of no more keys.
#pragma once

#include "attention/sm90/backward/storage.cuh"

namespace transformer_kernels::cuda {

template <class T_, int kDim_, BackwardVariant kVariant_>
struct BackwardClusterConfig {
  using T = T_;
  static constexpr int kDim = kDim_;  // columns in shared memory, 192 or 256
  static constexpr BackwardVariant kVariant = kVariant_;
  static constexpr bool kRagged = kVariant >= BackwardVariant::kRagged;
  static constexpr bool kWeights = kVariant == BackwardVariant::kWeights;
  // The signs of weights, which are not below 0 themselves: where dropout drops them.
  static constexpr std::uint32_t kDropped = 0x80008000;
  static constexpr int kCtas = 2;
  static constexpr int kSlabs = kDim / 64;
  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kConsumerRegisters = kDim > 192 ? 240 : 232;
  static constexpr int kProducerRegisters = kDim > 192 ? 24 : 40;
  // A kernel starts with equal shares of the registers, in steps of 8: no more are there to take.
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <=
                kThreads * (65536 / kThreads / 8 * 8));
  // See HopperBackwardConfig: 10 % faster with 256 columns, 4 % slower with 192.
  static constexpr bool kSumsFirst = kDim > 192;

  // dq of a block is cut into one slice for each consumer of the cluster.
  static constexpr int kSlices = kCtas * kConsumers;
  static constexpr int kMapSlabs = 0;  // no bias; masks are read from memory
  static constexpr bool kStoresFirst = false;
  static constexpr bool kDqTransposed = false;
  static constexpr __device__ bool makes_dq(int, std::uint32_t) { return true; }
  static constexpr __device__ std::uint32_t dq_number(std::uint32_t count) { return count; }
  // Columns of dq of a consumer: a slab. Of three slabs, the last one is cut in two.
  static constexpr int dq_columns(int consumer) { return kSlabs == 3 && consumer == 1 ? 32 : 64; }
  static constexpr __device__ int dq_first_column(int consumer, int rank) {
    if (kSlabs == 3) return consumer == 0 ? 64 * rank : 128 + 32 * rank;
    return 128 * rank + 64 * consumer;
  }

  // Blocks of dout and q follow each other in one ring of stages.
  static constexpr int kRowStages = kDim > 192 ? 3 : 4;
  static constexpr int kPStages = 2;
  static constexpr int kDsStages = 2;
  static constexpr int kItemStages = 2;
  static constexpr int kItemWords = kRagged ? 16 : 8;

  // Bytes. 64 rows are kSlabs slabs of 64 columns, the 128 bytes of a swizzled row.
  static constexpr int kSlabBytes = 64 * kSwizzleRow;
  static constexpr int kRowsBytes = kSlabs * kSlabBytes;
  static constexpr int kPBytes = kSlabBytes;
  static constexpr int kDsBytes = kCtas * kSlabBytes;
  static constexpr int kStatisticBytes = kBlockQueries * 4;
  static constexpr int kKeysBytes = 2 * kRowsBytes + kConsumers * kSlabBytes;

  // Offsets in shared memory.
  static constexpr int kK = 0;
  static constexpr int kV = kK + kRowsBytes;
  static constexpr int kOtherK = kV + kRowsBytes;  // of the other CTA: a slab for each consumer
  static constexpr int kRows = kOtherK + kConsumers * kSlabBytes;
  static constexpr int kDs = kRows + kRowStages * kRowsBytes;
  static constexpr int kP = kDs + kDsStages * kDsBytes;
  static constexpr int kStatistics = kP + kPStages * kPBytes;
  static constexpr int kItem = kStatistics + kRowStages * kStatisticBytes;
  static constexpr int kBarriers = kItem + kItemStages * kItemWords * 4;

  // Barriers.
  static constexpr int kKeysFull = 0;
  static constexpr int kKeysEmpty = 1;
  static constexpr int kItemFull = 2;
  static constexpr int kItemEmpty = kItemFull + kItemStages;  // those of rank 0 count
  static constexpr int kRowsFull = kItemEmpty + kItemStages;
  static constexpr int kRowsEmpty = kRowsFull + kRowStages;
  static constexpr int kPFull = kRowsEmpty + kRowStages;
  static constexpr int kPEmpty = kPFull + kPStages;
  static constexpr int kDsFull = kPEmpty + kPStages;
  static constexpr int kDsEmpty = kDsFull + kDsStages;
  static constexpr int kTurn = kDsEmpty + kDsStages;  // one a consumer, as the next
  static constexpr int kAdded = kTurn + kConsumers;
  static constexpr int kBarrierCount = kAdded + kConsumers;

  static constexpr int kSharedBytes = kBarriers + kBarrierCount * 8;
  static_assert(kSharedBytes <= 227 * 1024);

  // Whether dq is summed up in the order of tiles.
  static __device__ __forceinline__ bool ordered(const HopperBackward& p) {
    return kVariant == BackwardVariant::kOrdered || (kRagged && p.tiles_added != nullptr);
  }
};

template <class C>
struct ClusterShared : BackwardShared<C> {
  using S = BackwardShared<C>;

  // The number of the fill of the ring of stages at block number `count` of this CTA. It would
  // wrap, which a ring of three does not bear, after an hour, and no CTA runs for that long.
  static __device__ __forceinline__ std::uint32_t dout_fill(std::uint32_t count) {
    return 2 * count;
  }
  static __device__ __forceinline__ std::uint32_t q_fill(std::uint32_t count) {
    return 2 * count + 1;
  }
  static __device__ __forceinline__ bool is_q(std::uint32_t fill) { return fill % 2 == 1; }
  static __device__ __forceinline__ int row_stage(std::uint32_t fill) {
    return C::kRows + static_cast<int>(fill % C::kRowStages) * C::kRowsBytes;
  }
  static __device__ __forceinline__ int statistics(std::uint32_t fill) {
    return C::kStatistics + static_cast<int>(fill % C::kRowStages) * C::kStatisticBytes;
  }

  static __device__ __forceinline__ void init_barriers(bool ordered) {
    const auto init = [](int first, int count, int arrivals) {
      for (int i = 0; i < count; ++i) mbarrier_init(S::barrier(first + i), arrivals);
    };
    const int readers = 2 + C::kConsumerWarps + (ordered ? C::kConsumers : 0);
    init(C::kKeysFull, 1, 1);
    init(C::kKeysEmpty, 1, C::kConsumers);
    init(C::kItemFull, C::kItemStages, 1);
    init(C::kItemEmpty, C::kItemStages, C::kCtas * readers);
    init(C::kRowsFull, C::kRowStages, 1);
    init(C::kRowsEmpty, C::kRowStages, C::kCtas * C::kConsumerWarps);
    init(C::kPFull, C::kPStages, 4);
    init(C::kPEmpty, C::kPStages, 4);
    init(C::kDsFull, C::kDsStages, 4);
    init(C::kDsEmpty, C::kDsStages, C::kCtas * C::kConsumerWarps);
    init(C::kTurn, C::kConsumers, 1);
    init(C::kAdded, C::kConsumers, 4);
    fence_mbarrier_init();
  }

  static __device__ __forceinline__ WorkItem read_item(std::uint32_t count) {
    mbarrier_wait_cluster(S::template barrier<C::kItemStages>(C::kItemFull, count),
                          S::template parity<C::kItemStages>(count));
    return S::peek_item(count);
  }
  static __device__ __forceinline__ void release_item(std::uint32_t count) {
    mbarrier_arrive_remote(
        map_to_rank(S::template barrier<C::kItemStages>(C::kItemEmpty, count), 0));
  }
  // Rank 0 writes the item for both CTAs.
  static __device__ __forceinline__ void write_item(std::uint32_t count, const WorkItem& item) {
    S::template wait_empty<C::kItemStages>(C::kItemEmpty, count);
#pragma unroll 1
    for (int rank = 0; rank < C::kCtas; ++rank) {
      const std::uint32_t to = map_to_rank(S::item_address(count), rank);
      S::for_each_word(item, [&](int word, int value) { store_cluster_int(to + 4 * word, value); });
      mbarrier_arrive_cluster(
          map_to_rank(S::template barrier<C::kItemStages>(C::kItemFull, count), rank));
    }
  }
};

}  // namespace transformer_kernels::cuda
