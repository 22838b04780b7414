// SPDX-License-Identifier: MIT
// What the roles of the backward kernel for heads of more than 128 columns share. A tile is one of
// a pair of CTAs, 64 keys each: the registers of an SM hold dk and dv of no more.
#pragma once

#include "attention/hopper_backward_tile.cuh"

namespace transformer_kernels::cuda {

template <class T_, int kDim_, BackwardForm kForm_>
struct BackwardPairConfig {
  using T = T_;
  static constexpr int kDim = kDim_;  // columns in shared memory, 192 or 256
  static constexpr BackwardForm kForm = kForm_;
  static constexpr bool kRagged = kForm >= BackwardForm::kRagged;
  static constexpr bool kWeights = kForm == BackwardForm::kWeights;
  // The signs of weights, which are not below 0 themselves: where dropout drops them.
  static constexpr std::uint32_t kDropped = 0x80008000;
  static constexpr int kCtas = 2;
  static constexpr int kChunks = kDim / 64;
  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kConsumerRegisters = kDim > 192 ? 240 : 232;
  static constexpr int kProducerRegisters = kDim > 192 ? 24 : 40;
  // A kernel starts with equal shares of the registers, in steps of 8: no more are there to take.
  static_assert(128 * (kConsumers * kConsumerRegisters + kProducerRegisters) <=
                kThreads * (65536 / kThreads / 8 * 8));
  // As in HopperBackwardConfig: 10 % faster with 256 columns, 4 % slower with 192.
  static constexpr bool kSumsFirst = kDim > 192;

  // dq of a block is cut into one share for each consumer of the pair.
  static constexpr int kShares = kCtas * kConsumers;
  static constexpr int kMapPieces = 0;  // no bias; masks are read from memory
  static constexpr bool kStoresFirst = false;
  static constexpr bool kDqTransposed = false;
  static constexpr __device__ bool makes_dq(int, std::uint32_t) { return true; }
  static constexpr __device__ std::uint32_t dq_number(std::uint32_t count) { return count; }
  // Columns of dq of a consumer: a chunk. Of three chunks, the last one is cut in two.
  static constexpr int dq_columns(int consumer) { return kChunks == 3 && consumer == 1 ? 32 : 64; }
  static constexpr __device__ int dq_first_column(int consumer, int rank) {
    if (kChunks == 3) return consumer == 0 ? 64 * rank : 128 + 32 * rank;
    return 128 * rank + 64 * consumer;
  }

  // Blocks of dout and q take turns in one ring of slots.
  static constexpr int kSlots = kDim > 192 ? 3 : 4;
  static constexpr int kPStages = 2;
  static constexpr int kDsStages = 2;
  static constexpr int kItemStages = 2;
  static constexpr int kItemWords = kRagged ? 16 : 8;

  // Bytes. 64 rows are kChunks pieces of 64 columns.
  static constexpr int kChunkBytes = 64 * kSwizzleRow;
  static constexpr int kRowsBytes = kChunks * kChunkBytes;
  static constexpr int kPBytes = kChunkBytes;
  static constexpr int kDsBytes = kCtas * kChunkBytes;
  static constexpr int kStatisticBytes = kBlockQueries * 4;
  static constexpr int kKeysBytes = 2 * kRowsBytes + kConsumers * kChunkBytes;

  // Offsets in shared memory.
  static constexpr int kK = 0;
  static constexpr int kV = kK + kRowsBytes;
  static constexpr int kOtherK = kV + kRowsBytes;  // of the other CTA: a chunk for each consumer
  static constexpr int kRows = kOtherK + kConsumers * kChunkBytes;
  static constexpr int kDs = kRows + kSlots * kRowsBytes;
  static constexpr int kP = kDs + kDsStages * kDsBytes;
  static constexpr int kStatistics = kP + kPStages * kPBytes;
  static constexpr int kItem = kStatistics + kSlots * kStatisticBytes;
  static constexpr int kBarriers = kItem + kItemStages * kItemWords * 4;

  // Barriers.
  static constexpr int kKeysFull = 0;
  static constexpr int kKeysEmpty = 1;
  static constexpr int kItemFull = 2;
  static constexpr int kItemEmpty = kItemFull + kItemStages;  // those of rank 0 count
  static constexpr int kRowsFull = kItemEmpty + kItemStages;
  static constexpr int kRowsEmpty = kRowsFull + kSlots;
  static constexpr int kPFull = kRowsEmpty + kSlots;
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
    return kForm == BackwardForm::kOrdered || (kRagged && p.tiles_added != nullptr);
  }
};

template <class C>
struct PairShared : BackwardShared<C> {
  using S = BackwardShared<C>;

  // Where the ring of slots stands at block number `count` of this CTA. No CTA lives for the hour
  // after which it would wrap, which a ring of three does not bear.
  static __device__ __forceinline__ std::uint32_t dout_turn(std::uint32_t count) {
    return 2 * count;
  }
  static __device__ __forceinline__ std::uint32_t q_turn(std::uint32_t count) {
    return 2 * count + 1;
  }
  static __device__ __forceinline__ bool is_q(std::uint32_t turn) { return turn % 2 == 1; }
  static __device__ __forceinline__ int slot(std::uint32_t turn) {
    return C::kRows + static_cast<int>(turn % C::kSlots) * C::kRowsBytes;
  }
  static __device__ __forceinline__ int statistics(std::uint32_t turn) {
    return C::kStatistics + static_cast<int>(turn % C::kSlots) * C::kStatisticBytes;
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
    init(C::kRowsFull, C::kSlots, 1);
    init(C::kRowsEmpty, C::kSlots, C::kCtas * C::kConsumerWarps);
    init(C::kPFull, C::kPStages, 4);
    init(C::kPEmpty, C::kPStages, 4);
    init(C::kDsFull, C::kDsStages, 4);
    init(C::kDsEmpty, C::kDsStages, C::kCtas * C::kConsumerWarps);
    init(C::kTurn, C::kConsumers, 1);
    init(C::kAdded, C::kConsumers, 4);
    fence_mbarrier_init();
  }

  static __device__ __forceinline__ BackwardItem read_item(std::uint32_t count) {
    mbarrier_wait_cluster(S::template barrier<C::kItemStages>(C::kItemFull, count),
                          S::template parity<C::kItemStages>(count));
    return S::peek_item(count);
  }
  static __device__ __forceinline__ void release_item(std::uint32_t count) {
    mbarrier_arrive_remote(
        map_to_rank(S::template barrier<C::kItemStages>(C::kItemEmpty, count), 0));
  }
  // By rank 0, for both.
  static __device__ __forceinline__ void write_item(std::uint32_t count, const BackwardItem& item) {
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
