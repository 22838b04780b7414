// SPDX-License-Identifier: MIT
// The producers of a CTA of a cluster. Each is one thread of a warp of its own.
#pragma once

#include "attention/sm90/backward/producer.cuh"
#include "attention/sm90/backward_cluster/storage.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct ClusterProducer : BlockProducer<C, ClusterShared<C>> {
  using S = ClusterShared<C>;
  using Base = BlockProducer<C, S>;
  using Base::for_each_block, Base::p;
  using typename Base::ItemAt;

  static constexpr std::uint16_t kBothCtas = 3;

  const int rank;

  __device__ ClusterProducer(const HopperBackward& problem, int rank_)
      : Base(problem),
        rank(rank_) {}

  // ---------------------------------------------------------------- keys

  // Into the slab at `to`, slab number `i` of the rows.
  static __device__ __forceinline__ void load_slab(int to, const CUtensorMap* maps, int i,
                                                   BoxOrigin box) {
    box.at[0] = 64 * i;
    tensor_load(S::at(to), S::map_of(maps, i), box, S::barrier(C::kKeysFull), l2_evict_first());
  }

  __device__ __forceinline__ void load_keys(const ItemAt& item) const {
    mbarrier_arrive_expect(S::barrier(C::kKeysFull), C::kKeysBytes);
    const BoxOrigin box = S::box_of_keys(p, item(), rank);
#pragma unroll 1
    for (int i = 0; i < C::kSlabs; ++i) {
      load_slab(C::kK + i * C::kSlabBytes, p.k, i, box);
      load_slab(C::kV + i * C::kSlabBytes, p.v, i, box);
    }
    const BoxOrigin other_box = S::box_of_keys(p, item(), 1 - rank);
#pragma unroll 1
    for (int i = 0; i < C::kConsumers; ++i) {
      const int slab = C::dq_first_column(i, rank) / 64;
      load_slab(C::kOtherK + i * C::kSlabBytes, p.k, slab, other_box);
    }
  }

  // The item that follows one with these bits: the next head of its tile or the first of a new
  // tile, until there are none.
  __device__ __forceinline__ WorkItem following(const ItemAt& item, int bits) const {
    const int group = p.geometry.group();
    WorkItem next;
    if (bits & WorkItem::kLast) {
      if (!Base::take_tile(next)) return {{-1, 0, 0}, 0, 0};
      next.head = next.tile.kv_head * group;
      next.bits = WorkItem::kFirst | (~bits & WorkItem::kParity);
      if constexpr (C::kRagged) next.place = p.geometry.first_place(next.tile.batch, next.head);
    } else {
      next = item();
      ++next.head;
      next.bits = bits & WorkItem::kParity;
      if constexpr (C::kRagged) next.place += p.geometry.query_blocks;
    }
    if (next.head % group == group - 1) next.bits |= WorkItem::kLast;
    return next;
  }

  // Loads the keys and values of tiles. That of rank 0 hands out the items, to both CTAs.
  __device__ void load_tiles() const {
    WorkItem item{{}, 0, WorkItem::kLast | WorkItem::kParity};
    for (std::uint32_t items = 0;; ++items) {
      if (rank == 0) S::write_item(items, following({item, items - 1}, item.bits));
      item = S::read_item(items);
      if (!C::kRagged) S::release_item(items);
      if (item.none()) return;
      if (item.first()) {
        mbarrier_wait(S::barrier(C::kKeysEmpty), item.parity() ^ 1);
        load_keys({item, items});
      }
      if (C::kRagged) S::release_item(items);
    }
  }

  // ---------------------------------------------------------------- queries

  __device__ void load_queries() const {
    std::uint32_t fill = S::dout_fill(0);
    for_each_block([&](const ItemAt& item, int block, std::uint32_t) {
#pragma unroll 1
      do {
        load_rows(item, block, fill);
      } while (!S::is_q(fill++));
    });
  }

  // A block of q or dout, of which each CTA loads every second slab for both, and its statistic.
  __device__ __forceinline__ void load_rows(const ItemAt& item, int block,
                                            std::uint32_t fill) const {
    const bool is_q = S::is_q(fill);
    BoxOrigin box = S::box_of_queries(p, item(), block);
    const std::uint32_t full = S::template barrier<C::kRowStages>(C::kRowsFull, fill);
    S::template wait_empty<C::kRowStages>(C::kRowsEmpty, fill);
    mbarrier_arrive_expect(full, C::kRowsBytes + C::kStatisticBytes);
    const std::uint64_t policy = l2_evict_last();
    const CUtensorMap* const maps = is_q ? p.q : p.dout;
#pragma unroll
    for (int i = 0; i < C::kSlabs; i += C::kCtas) {
      const int slab = i + (fill + rank) % C::kCtas;
      if (slab >= C::kSlabs) break;
      box.at[0] = 64 * slab;
      tensor_load_multicast(S::at(S::row_stage(fill) + slab * C::kSlabBytes), S::map_of(maps, slab),
                            box, full, kBothCtas, policy);
    }
    const int place = S::place_of(p, item()) + block;
    const float* const statistics =
        p.statistics + static_cast<std::int64_t>(place) * (2 * kBlockQueries);
    bulk_load(S::at(S::statistics(fill)), statistics + (is_q ? 0 : kBlockQueries),
              C::kStatisticBytes, full);
  }
};

}  // namespace transformer_kernels::cuda
