// SPDX-License-Identifier: MIT
// The producers of a CTA of a pair. Each is one thread of a warp of its own.
#pragma once

#include "attention/hopper_backward_pair_tile.cuh"
#include "attention/hopper_backward_producer.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct PairProducer : BlockProducer<C, PairShared<C>> {
  using S = PairShared<C>;
  using Base = BlockProducer<C, S>;
  using Base::for_each_block, Base::p;
  using typename Base::ItemAt;

  static constexpr std::uint16_t kBothCtas = 3;

  const int rank;

  __device__ PairProducer(const HopperBackward& problem, int rank_) : Base(problem), rank(rank_) {}

  // ---------------------------------------------------------------- keys

  __device__ __forceinline__ void load_chunk(int to, const CUtensorMap& map, int column, int row,
                                             const KeyTile& tile) const {
    tensor_load(S::at(to), map, {column, row, tile.kv_head, tile.batch, 0},
                S::barrier(C::kKeysFull), l2_evict_first());
  }

  __device__ __forceinline__ void load_keys(const KeyTile& tile) const {
    mbarrier_arrive_expect(S::barrier(C::kKeysFull), C::kKeysBytes);
    const int row = tile.first_key() + 64 * rank;
    const int other_row = tile.first_key() + 64 * (1 - rank);
#pragma unroll 1
    for (int i = 0; i < C::kChunks; ++i) {
      load_chunk(C::kK + i * C::kChunkBytes, p.k, 64 * i, row, tile);
      load_chunk(C::kV + i * C::kChunkBytes, p.v, 64 * i, row, tile);
    }
#pragma unroll 1
    for (int i = 0; i < C::kConsumers; ++i) {
      const int column = C::dq_first_column(i, rank) / 64 * 64;
      load_chunk(C::kOtherK + i * C::kChunkBytes, p.k, column, other_row, tile);
    }
  }

  // What comes after an item: the next head of its tile or the first of a new tile, until there are
  // none.
  __device__ __forceinline__ BackwardItem following(const BackwardItem& item) const {
    const int group = p.plan.group();
    BackwardItem next{item.tile, item.head + 1, item.bits & BackwardItem::kParity};
    if (item.last()) {
      const int number = atomicAdd(p.next_tile, 1);
      if (number >= p.plan.tiles()) return {{-1, 0, 0}, 0, 0};
      next.tile = p.plan.tile(number);
      next.head = next.tile.kv_head * group;
      next.bits = BackwardItem::kFirst | (next.bits ^ BackwardItem::kParity);
    }
    if (next.head % group == group - 1) next.bits |= BackwardItem::kLast;
    return next;
  }

  // Loads the keys and values of tiles. That of rank 0 hands out the items, to both CTAs.
  __device__ void load_tiles() const {
    BackwardItem item{{}, 0, BackwardItem::kLast | BackwardItem::kParity};
    for (std::uint32_t items = 0;; ++items) {
      if (rank == 0) S::write_item(items, following(item));
      item = S::read_item(items);
      S::release_item(items);
      if (item.none()) return;
      if (!item.first()) continue;
      mbarrier_wait(S::barrier(C::kKeysEmpty), item.parity() ^ 1);
      load_keys(item.tile);
    }
  }

  // ---------------------------------------------------------------- queries

  __device__ void load_queries() const {
    for_each_block([&](const ItemAt& item, int block, std::uint32_t count) {
#pragma unroll 1
      for (std::uint32_t turn = S::dout_turn(count); turn <= S::q_turn(count); ++turn) {
        load_rows(item(), block, turn);
      }
    });
  }

  // A block of q or dout, of which each CTA loads every second chunk for both, and its statistic.
  __device__ __forceinline__ void load_rows(const BackwardItem& item, int block,
                                            std::uint32_t turn) const {
    const bool is_q = turn % 2 == 1;
    const std::uint32_t full = S::template barrier<C::kSlots>(C::kRowsFull, turn);
    S::template wait_empty<C::kSlots>(C::kRowsEmpty, turn);
    mbarrier_arrive_expect(full, C::kRowsBytes + C::kStatisticBytes);
    const std::uint64_t policy = l2_evict_last();
    const CUtensorMap& map = is_q ? p.q : p.dout;
#pragma unroll
    for (int i = 0; i < C::kChunks; i += C::kCtas) {
      const int chunk = i + (turn + rank) % C::kCtas;
      if (chunk >= C::kChunks) break;
      tensor_load_multicast(S::at(S::slot(turn) + chunk * C::kChunkBytes), map,
                            {64 * chunk, block * kBlockQueries, item.head, item.tile.batch, 0},
                            full, kBothCtas, policy);
    }
    const int place = p.plan.block_place(item.tile.batch, item.head, block);
    const float* const statistics =
        p.statistics + static_cast<std::int64_t>(place) * (2 * kBlockQueries);
    bulk_load(S::at(S::statistics(turn)), statistics + (is_q ? 0 : kBlockQueries),
              C::kStatisticBytes, full);
  }
};

}  // namespace transformer_kernels::cuda
