// SPDX-License-Identifier: MIT
// The producers of the forward kernel, which move data by TMA: one thread, in a warp of its own,
// each for q and k, for v, for bias and mask, and for out.
#pragma once

#include "attention/sm90/forward/tiles.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
                                            typename ForwardStorage<C>::Keys& blocks,
                                            const CUtensorMap& map, int boxes) {
  const std::uint64_t again = l2_evict_last();
  const bool varlen = p.blocks.offsets != nullptr;
  const int head = t.head / p.heads_per_kv_head;
  int row = (varlen ? p.problem.k_offsets[t.batch] : 0) + t.end * C::kKeys;
#pragma unroll 1
  for (int left = t.end - t.begin; left > 0; --left) {
    row -= C::kKeys;
    blocks.acquire();
    blocks.commit(C::kBlockBytes);
    load_rows<C>(blocks.data(), map, boxes, C::kKeys, row, head, varlen ? 0 : t.batch,
                 blocks.full(), again);
    blocks.advance();
  }
}

// One thread: it finds the tiles, and tells the others of each when q's buffer is free.
template <class C>
__device__ __forceinline__ void load_q_and_k(const HopperForward& p, ForwardStorage<C>& storage) {
  typename ForwardStorage<C>::Queries q = storage.queries();
  typename ForwardStorage<C>::Keys k = storage.keys();
  for (int index = p.tiles.first(); index < p.tiles.items; index = p.tiles.next()) {
    const ForwardTile t = tile_at<C>(p, index);
    if (t.query >= t.queries) continue;
    q.acquire();
    storage.tiles[q.stage()] = t;
    q.commit(C::kGroups * C::kGroupBytes);
#pragma unroll 1
    for (int i = 0; i < C::kGroups; ++i) {
      load_rows<C>(q.data() + i * C::kGroupBytes, p.q, p.q_boxes, 64, t.q_begin + t.query + 64 * i,
                   t.head, p.blocks.offsets ? 0 : t.batch, q.full(), l2_evict_first());
    }
    q.advance();
    load_blocks<C>(p, t, k, p.k, p.q_boxes);
  }
  q.acquire();
  storage.tiles[q.stage()] = {.batch = -1};
  q.commit();
}

// Calls body(tile) for the tiles that load_q_and_k() finds. One thread. It frees q's buffer as well
// as the one that stores, so a tile cannot change under it.
template <class C, class Body>
__device__ __forceinline__ void for_each_tile(const ForwardStorage<C>& storage, Body&& body) {
  typename ForwardStorage<C>::Queries q = storage.queries();
  for (;;) {
    q.wait();
    const ForwardTile t = storage.tiles[q.stage()];
    if (t.batch < 0) break;
    q.release();
    q.advance();
    body(t);
  }
}

// One thread.
template <class C>
__device__ __forceinline__ void load_v(const HopperForward& p, const ForwardStorage<C>& storage) {
  typename ForwardStorage<C>::Keys v = storage.values();
  for_each_tile(storage, [&](const ForwardTile& t) { load_blocks<C>(p, t, v, p.v, p.v_boxes); });
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

// One thread: bias and mask, for each warpgroup.
template <class C>
__device__ __forceinline__ void load_maps(const HopperForward& p,
                                          const ForwardStorage<C>& storage) {
  int round = 0;  // of a stage, which says its phase
  for_each_tile(storage, [&](const ForwardTile& t) {
    if (p.map_bytes == 0) return;
#pragma unroll 1
    for (int block = t.end - 1; block >= t.begin; --block, round ^= 1) {
#pragma unroll 1
      for (int group = 0; group < C::kGroups; ++group) {
        typename ForwardStorage<C>::Maps maps = storage.maps_of(group);
        maps.skip(round);
        maps.acquire();
        maps.commit(p.map_bytes);
        const int query = t.query + 64 * group;
        load_map<C>(p.bias, maps.data(), t, query, block * C::kKeys, maps.full());
        load_map<C>(p.mask, maps.data(), t, query, block * C::kKeys, maps.full());
      }
    }
  });
}

// One thread.
template <class C>
__device__ __forceinline__ void store_tiles(const HopperForward& p,
                                            const ForwardStorage<C>& storage) {
  typename ForwardStorage<C>::Queries q = storage.queries();
  for (;;) {
    ForwardTile t;
#pragma unroll 1
    for (int i = 0; i < C::kGroups; ++i) {
      mbarrier_wait(storage.out_full_of(q.stage(), i), q.phase());
      t = storage.tiles[q.stage()];
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
    q.release();
    q.advance();
  }
  bulk_wait<0>();
}

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
