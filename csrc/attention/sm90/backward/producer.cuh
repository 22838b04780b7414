// SPDX-License-Identifier: MIT
// The producers of the backward kernel on Hopper. Each is one thread of a warp of its own, so that
// none needs more than the few registers that the consumers leave.
#pragma once

#include "attention/sm90/backward/storage.cuh"

namespace transformer_kernels::cuda {

// The base of producers; S is the layout of their shared memory.
template <class C, class S>
struct BlockProducer : S {
  const HopperBackward& p;

  __device__ explicit BlockProducer(const HopperBackward& problem) : p(problem) {}

  // An item that this thread knows to be there. Ragged ones are read again for each use: they are
  // long, and registers few.
  struct ItemAt {
    WorkItem read;
    std::uint32_t number;

    __device__ __forceinline__ WorkItem operator()() const {
      if constexpr (C::kRagged) return S::peek_item(number);
      return read;
    }
  };

  // Calls body(item, block, count) for each block of queries of each item, in the order of the
  // consumers.
  template <class Body>
  __device__ __forceinline__ void for_each_block(Body&& body) const {
    std::uint32_t count = 0;
    for (std::uint32_t items = 0;; ++items) {
      const WorkItem item = S::read_item(items);
      if (!C::kRagged || item.none()) S::release_item(items);
      if (item.none()) return;
      const IntRange blocks = S::geometry_of(p, item).blocks_of(item.tile.index);
#pragma unroll 1
      for (int block = blocks.end - 1; block >= blocks.begin; --block) {
        body(ItemAt{item, items}, block, count++);
      }
      if (C::kRagged) S::release_item(items);
    }
  }

  // The next tile that there is; false where there is none left.
  __device__ __forceinline__ bool take_tile(WorkItem& item) const {
    for (;;) {
      const int number = atomicAdd(p.next_tile, 1);
      if (number >= p.geometry.tiles()) return false;
      if constexpr (!C::kRagged) {
        item.tile = p.geometry.tile(number);
        return true;
      } else {
        item.tile = p.geometry.tile_in_sequence(number);
        item.sequence = p.geometry.sequence(item.tile.batch);
        if (item.tile.first_key() < item.sequence.keys) return true;
      }
    }
  }

  // Lets `consumer` add its `slice` of dq when the tiles before its own have, and the next tile
  // after it. A tile waits for lower ones of its head only, and the lowest unfinished one is always
  // at work: whatever runs at a time, there is no deadlock.
  __device__ void keep_order(int consumer, int slice) const {
    for_each_block([&](const ItemAt& item, int block, std::uint32_t count) {
      if (!C::makes_dq(consumer, count)) return;
      const std::int64_t place = S::place_of(p, item()) + block;
      int* const added = p.tiles_added + place * C::kSlices + slice;
      const int turn = S::geometry_of(p, item()).turn(item().tile.index, block);
      while (load_acquire(added) != turn) {
      }
      mbarrier_arrive(S::barrier(C::kTurn + consumer));
      S::template wait_full<1>(C::kAdded + consumer, C::dq_number(count));
      store_release(added, turn + 1);
    });
  }
};

template <class C>
struct BackwardProducer : BlockProducer<C, BackwardShared<C>> {
  using S = BackwardShared<C>;
  using Base = BlockProducer<C, S>;
  using Base::Base, Base::for_each_block, Base::p;
  using typename Base::ItemAt;

  // 64 rows of a head, all columns.
  static __device__ __forceinline__ void load_rows(int to, const CUtensorMap* maps, BoxOrigin box,
                                                   std::uint32_t barrier, std::uint64_t policy) {
#pragma unroll
    for (int i = 0; i < C::kSlabs; ++i) {
      box.at[0] = 64 * i;
      tensor_load(S::at(to + i * C::kSlabBytes), S::map_of(maps, i), box, barrier, policy);
    }
  }

  __device__ __forceinline__ void load_keys(const ItemAt& item) const {
    const std::uint32_t full = S::barrier(C::kKeysFull);
    mbarrier_arrive_expect(full, 2 * C::kKeysBytes);
#pragma unroll(C::kRagged ? 1 : C::kConsumers)
    for (int i = 0; i < C::kConsumers; ++i) {
      const BoxOrigin box = S::box_of_keys(p, item(), i);
      load_rows(C::kK + i * C::kRowsBytes, p.k, box, full, l2_evict_first());
      load_rows(C::kV + i * C::kRowsBytes, p.v, box, full, l2_evict_first());
    }
  }

  // Takes tiles until there are none, and loads their keys and values.
  __device__ void schedule() const {
    const int group = p.geometry.group();
    std::uint32_t count = 0;
    for (std::uint32_t tiles = 0;; ++tiles) {
      WorkItem item;
      if (!Base::take_tile(item)) break;
      item.head = item.tile.kv_head * group;
      item.bits = WorkItem::kFirst | (group == 1 ? WorkItem::kLast : 0) |
                  (tiles % 2 == 1 ? WorkItem::kParity : 0);
      if constexpr (C::kRagged) item.place = p.geometry.first_place(item.tile.batch, item.head);
      S::write_item(count, item);
      S::template wait_empty<1>(C::kKeysEmpty, tiles);
      load_keys({item, count++});
      for (int i = 1; i < group; ++i) {
        item = ItemAt{item, count - 1}();
        ++item.head;
        item.bits = (item.bits & WorkItem::kParity) | (i == group - 1 ? WorkItem::kLast : 0);
        if constexpr (C::kRagged) item.place += p.geometry.query_blocks;
        S::write_item(count++, item);
      }
    }
    WorkItem end{};
    end.tile.index = -1;
    S::write_item(count, end);
  }

  // q, dout and their statistics, and what bias and mask hold for them.
  __device__ void load_queries() const {
    for_each_block([&](const ItemAt& item, int block, std::uint32_t count) {
      load_q(item, block, count);
      load_dout(item, block, count);
      if constexpr (C::kHasFeatures) load_maps(item, block, count);
    });
  }

  __device__ __forceinline__ void load_q(const ItemAt& item, int block, std::uint32_t count) const {
    const int stage = static_cast<int>(count % C::kQStages);
    const std::uint32_t full = S::template barrier<C::kQStages>(C::kQFull, count);
    S::template wait_empty<C::kQStages>(C::kQEmpty, count);
    mbarrier_arrive_expect(full, C::kRowsBytes + C::kStatisticBytes);
    load_rows(C::kQ + stage * C::kRowsBytes, p.q, S::box_of_queries(p, item(), block), full,
              l2_evict_last());
    const int place = S::place_of(p, item()) + block;
    bulk_load(S::at(C::kStatistics + stage * C::kStatisticBytes),
              p.statistics + static_cast<std::int64_t>(place) * (2 * kBlockQueries),
              C::kStatisticBytes, full);
  }

  __device__ __forceinline__ void load_dout(const ItemAt& item, int block,
                                            std::uint32_t count) const {
    const int stage = static_cast<int>(count % C::kDoutStages);
    const std::uint32_t full = S::template barrier<C::kDoutStages>(C::kDoutFull, count);
    S::template wait_empty<C::kDoutStages>(C::kDoutEmpty, count);
    mbarrier_arrive_expect(full, C::kRowsBytes);
    load_rows(C::kDout + stage * C::kRowsBytes, p.dout, S::box_of_queries(p, item(), block), full,
              l2_evict_last());
  }

  __device__ __forceinline__ void load_maps(const ItemAt& item, int block,
                                            std::uint32_t count) const {
    if (p.features.map_bytes == 0) return;
    S::template wait_empty<1>(C::kMapsEmpty, count);
    mbarrier_arrive_expect(S::barrier(C::kMapsFull), p.features.map_bytes);
    load_map(p.features.bias, item, block);
    load_map(p.features.mask, item, block);
  }

  static __device__ __forceinline__ void load_map(const LoadedMap& map, const ItemAt& item,
                                                  int block) {
    if (map.slab_keys == 0) return;
    const WorkItem of = item();
    BoxOrigin box = {of.tile.first_key(), block * kBlockQueries, of.head * map.head_step,
                     of.tile.batch * map.batch_step, 0};
    std::uint32_t slab = S::at(C::kMaps + map.place * kMapSlabBytes);
#pragma unroll 1
    for (int keys = kTileKeys; keys > 0; keys -= map.slab_keys) {
      tensor_load(slab, map.map, box, S::barrier(C::kMapsFull), l2_evict_first());
      box.at[0] += map.slab_keys;
      slab += kMapSlabBytes;
    }
  }

  // Instead of keep_order(), where sums of dq leave by way of shared memory: adds them in the same
  // order itself.
  __device__ void add_in_order(int consumer, int slice) const {
    int* last = nullptr;
    int turn_after_last = 0;
    const auto end_last = [&] {
      if (last == nullptr) return;
      bulk_wait<0>();
      store_release(last, turn_after_last);
    };
    for_each_block([&](const ItemAt& item, int block, std::uint32_t count) {
      if (!C::makes_dq(consumer, count)) return;
      const std::uint32_t n = C::dq_number(count);
      const std::int64_t place = (S::place_of(p, item()) + block) * C::kSlices + slice;
      int* const added = p.tiles_added + place;
      const int turn = p.geometry.turn(item().tile.index, block);
      end_last();
      S::template wait_full<C::kSumStages>(S::sums_full(consumer), n);
      while (load_acquire(added) != turn) {
      }
      // The load that saw the turn orders what this thread does, but bulk copies by a fence only.
      fence_async_global();
      float* const sums = p.dq + place * C::kSliceSums;
      if (C::kStoresFirst && turn == 0) {
        bulk_store(sums, S::sums(consumer, n), C::kSliceBytes);
      } else {
        bulk_reduce_add(sums, S::sums(consumer, n), C::kSliceBytes);
      }
      bulk_commit();
      bulk_wait_read<0>();
      mbarrier_arrive(S::template barrier<C::kSumStages>(S::sums_empty(consumer), n));
      last = added;
      turn_after_last = turn + 1;
    });
    end_last();
  }
};

}  // namespace transformer_kernels::cuda
