// SPDX-License-Identifier: MIT
// The producers of the backward kernel on Hopper. Each is one thread of a warp of its own, so that
// none needs more than the few registers that the consumers leave.
#pragma once

#include "attention/hopper_backward_tile.cuh"

namespace transformer_kernels::cuda {

// What producers have in common that share their shared memory as S says.
template <class C, class S>
struct BlockProducer : S {
  const HopperBackward& p;

  __device__ explicit BlockProducer(const HopperBackward& problem) : p(problem) {}

  // Calls body(item, block, count) for each block of queries of each item, in the order of the
  // consumers.
  template <class Body>
  __device__ __forceinline__ void for_each_block(Body&& body) const {
    std::uint32_t count = 0;
    for (std::uint32_t items = 0;; ++items) {
      const BackwardItem item = S::read_item(items);
      S::release_item(items);
      if (item.none()) return;
      const BlockRange blocks = p.plan.blocks_of(item.tile.index);
#pragma unroll 1
      for (int block = blocks.end - 1; block >= blocks.begin; --block) body(item, block, count++);
    }
  }

  // Lets `consumer` add its `share` of dq when the tiles before its own have, and the next tile
  // after it. A tile waits for lower ones of its head only, and the lowest unfinished one is always
  // at work: whatever runs at a time, there is no deadlock.
  __device__ void keep_order(int consumer, int share) const {
    for_each_block([&](const BackwardItem& item, int block, std::uint32_t count) {
      if (!C::makes_dq(consumer, count)) return;
      const std::int64_t place = p.plan.block_place(item.tile.batch, item.head, block);
      int* const added = p.tiles_added + place * C::kShares + share;
      const int turn = p.plan.turn(item.tile.index, block);
      while (load_acquire(added) != turn) {
      }
      mbarrier_arrive(S::barrier(C::kTurn + consumer));
      mbarrier_wait(S::barrier(C::kAdded + consumer), C::dq_parity(count));
      store_release(added, turn + 1);
    });
  }
};

template <class C>
struct BackwardProducer : BlockProducer<C, BackwardShared<C>> {
  using S = BackwardShared<C>;
  using Base = BlockProducer<C, S>;
  using Base::Base, Base::for_each_block, Base::p;

  // 64 rows of a head, all columns.
  static __device__ __forceinline__ void load_rows(int to, const CUtensorMap& map, int row,
                                                   int head, int batch, std::uint32_t barrier,
                                                   std::uint64_t policy) {
#pragma unroll
    for (int i = 0; i < C::kChunks; ++i) {
      tensor_load(S::at(to + i * C::kChunkBytes), map, {64 * i, row, head, batch, 0}, barrier,
                  policy);
    }
  }

  __device__ __forceinline__ void load_keys(const KeyTile& tile) const {
    const std::uint32_t full = S::barrier(C::kKeysFull);
    mbarrier_arrive_expect(full, 2 * C::kKeysBytes);
#pragma unroll
    for (int i = 0; i < C::kConsumers; ++i) {
      const int row = tile.first_key() + 64 * i;
      load_rows(C::kK + i * C::kRowsBytes, p.k, row, tile.kv_head, tile.batch, full,
                l2_evict_first());
      load_rows(C::kV + i * C::kRowsBytes, p.v, row, tile.kv_head, tile.batch, full,
                l2_evict_first());
    }
  }

  // Takes tiles until there are none, and loads their keys and values.
  __device__ void schedule() const {
    const int group = p.plan.group();
    std::uint32_t count = 0;
    for (std::uint32_t tiles = 0;; ++tiles) {
      const int number = atomicAdd(p.next_tile, 1);
      if (number >= p.plan.tiles()) break;
      const KeyTile tile = p.plan.tile(number);
      for (int i = 0; i < group; ++i) {
        const int bits = (i == 0 ? BackwardItem::kFirst : 0) |
                         (i == group - 1 ? BackwardItem::kLast : 0) |
                         (tiles % 2 == 1 ? BackwardItem::kParity : 0);
        S::write_item(count++, {tile, tile.kv_head * group + i, bits});
        if (i > 0) continue;
        S::template wait_empty<1>(C::kKeysEmpty, tiles);
        load_keys(tile);
      }
    }
    S::write_item(count, {{-1, 0, 0}, 0, 0});
  }

  // q, dout and their statistics.
  __device__ void load_queries() const {
    for_each_block([&](const BackwardItem& item, int block, std::uint32_t count) {
      load_q(item, block, count);
      load_dout(item, block, count);
    });
  }

  __device__ __forceinline__ void load_q(const BackwardItem& item, int block,
                                         std::uint32_t count) const {
    const int stage = static_cast<int>(count % C::kQStages);
    const std::uint32_t full = S::template barrier<C::kQStages>(C::kQFull, count);
    S::template wait_empty<C::kQStages>(C::kQEmpty, count);
    mbarrier_arrive_expect(full, C::kRowsBytes + C::kStatisticBytes);
    load_rows(C::kQ + stage * C::kRowsBytes, p.q, block * kBlockQueries, item.head, item.tile.batch,
              full, l2_evict_last());
    const int place = p.plan.block_place(item.tile.batch, item.head, block);
    bulk_load(S::at(C::kStatistics + stage * C::kStatisticBytes),
              p.statistics + static_cast<std::int64_t>(place) * (2 * kBlockQueries),
              C::kStatisticBytes, full);
  }

  __device__ __forceinline__ void load_dout(const BackwardItem& item, int block,
                                            std::uint32_t count) const {
    const int stage = static_cast<int>(count % C::kDoutStages);
    const std::uint32_t full = S::template barrier<C::kDoutStages>(C::kDoutFull, count);
    S::template wait_empty<C::kDoutStages>(C::kDoutEmpty, count);
    mbarrier_arrive_expect(full, C::kRowsBytes);
    load_rows(C::kDout + stage * C::kRowsBytes, p.dout, block * kBlockQueries, item.head,
              item.tile.batch, full, l2_evict_last());
  }
};

}  // namespace transformer_kernels::cuda
