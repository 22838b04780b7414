// SPDX-License-Identifier: MIT
// The warpgroup of the backward kernel on Hopper that computes dq of every block over all keys of
// the tile, 64 columns at a time, in variants whose consumers compute none. Consumers leave dS in
// shared memory, and go on.
//
// With dropout it also draws the bits of the next block while consumers compute dS.
//
// With 64 columns it computes dQ^T = K^T dS: the operand in registers is then K^T, which serves a
// whole tile. With 128 columns there are no registers for that, and it computes dQ = dS K.
#pragma once

#include "attention/sm90/backward/drawer.cuh"
#include "attention/sm90/backward/storage.cuh"
#include "core/cuda/mma.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct BackwardDqMaker : ConsumerThread<C, BackwardShared<C>> {
  using S = BackwardShared<C>;
  using Base = ConsumerThread<C, S>;
  using Base::add_sums, Base::begin_turn, Base::end_turn, Base::kSumStep;
  using Base::columns_of, Base::ds_block, Base::first_sum, Base::key_step, Base::lane;
  using Base::release, Base::same, Base::warp;
  using T = typename C::T;

  static constexpr int kSteps = kTileKeys / 16;
  static constexpr int kKept = kSteps - 1;  // there is no room for the last one

  const HopperBackward& p;
  std::uint32_t count = 0;  // of blocks
  [[no_unique_address]] std::conditional_t<C::kDraws, BackwardDrawer<C>, NoDrawer> drawer;
  float dq[32];
  std::uint32_t keys[4 * kKept];  // K^T, 16 keys a step, where it is kept

  __device__ BackwardDqMaker(const HopperBackward& problem, int warp_, int lane_)
      : Base(warp_, lane_),
        p(problem),
        drawer(problem, warp_, lane_) {}

  // Keeps the warp's 16 columns of K in registers.
  __device__ __forceinline__ void keep_keys() {
    const std::uint32_t row = swizzled_16x16_trans<kSwizzleRow>(S::at(C::kK), 0, 2 * warp, lane);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      std::uint32_t words[4];
      ldmatrix_x4_trans(words, row + i * 16 * kSwizzleRow);
#pragma unroll
      for (int j = 0; j < 4; ++j) keys[4 * i + j] = words[j];
    }
  }

  // dQ^T of one block.
  __device__ __forceinline__ void multiply_transposed() {
    const std::uint64_t ds = columns_of(ds_block(count));
    const std::uint64_t k = columns_of(C::kK);
    wgmma_fence();
    wgmma_first<T, Major::kOther>(dq, keys, ds);
#pragma unroll
    for (int i = 1; i < kKept; ++i) wgmma<T, Major::kOther>(dq, keys + 4 * i, ds + i * 128);
    wgmma<T, Major::kOther, Major::kOther>(dq, k + key_step(kKept), ds + kKept * 128);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dq);
    pin(keys);
  }

  // dQ of one block, 64 columns of it.
  __device__ __forceinline__ void multiply(int slice) {
    const std::uint64_t ds = columns_of(ds_block(count));
    const std::uint64_t k = columns_of(C::kK + slice * C::kSlabBytes);
    wgmma_fence();
    wgmma_first<T, Major::kOther, Major::kOther>(dq, ds, k);
#pragma unroll
    for (int i = 1; i < kSteps; ++i) {
      wgmma<T, Major::kOther, Major::kOther>(dq, ds + i * 128, k + key_step(i));
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(dq);
  }

  // 64 columns of dq of a block, which is number `place` among those of all heads.
  __device__ __forceinline__ void make_slice(int place, int slice) {
    if constexpr (C::kDqTransposed) {
      multiply_transposed();
    } else {
      multiply(slice);
    }
    if (slice == C::kSlices - 1) release<C::kDsStages>(C::kDsEmpty, count);
    if constexpr (C::kSumsInShared) {
      put_sums();
    } else {
      add_slice(place, slice);
    }
  }

  __device__ __forceinline__ void put_sums() {
    const int ring = C::maker_of_dq(count);
    const std::uint32_t n = C::dq_number(count);
    S::template wait_empty<C::kSumStages>(S::sums_empty(ring), n);
    const std::uint32_t to = S::sums(ring, n) + first_sum(warp, lane) * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* const of = dq + 4 * i;
      store_shared(to + i * kSumStep * 4, {__float_as_uint(of[0]), __float_as_uint(of[1]),
                                           __float_as_uint(of[2]), __float_as_uint(of[3])});
    }
    fence_async_shared();
    __syncwarp();
    release<C::kSumStages>(S::sums_full(ring), n);
  }

  __device__ __forceinline__ void add_slice(int place, int slice) {
    const bool in_turn = C::takes_turns(p);
    if (in_turn) begin_turn(slice, count);
    add_sums(p, place, slice, dq);
    if (in_turn) end_turn(slice);
    __syncwarp();  // keeps the sums before the next products, which take their registers
  }

  // Draws the bits of the block after this one, which may belong to the next item, and the bits of
  // this one if they have not been drawn yet.
  __device__ __forceinline__ void draw_ahead(WorkItem item, std::uint32_t items, int block,
                                             int last) {
#pragma unroll 1
    for (bool behind = drawer.drawn != count;; behind = true) {
      if (behind && --block < last) {
        item = same(S::read_item(items + 1));
        if (item.none()) return;
        const IntRange blocks = p.geometry.blocks_of(item.tile.index);
        if (blocks.begin >= blocks.end) return;
        block = blocks.end - 1;
      }
      drawer.draw(item, block);
      if (behind) return;
    }
  }

  __device__ __forceinline__ void run() {
    for (std::uint32_t items = 0;; ++items) {
      const WorkItem item = same(S::read_item(items));
      __syncwarp();
      if (lane == 0) S::release_item(items);
      if (item.none()) return;
      if (item.first()) {
        mbarrier_wait(S::barrier(C::kKeysFull), item.parity());
        if constexpr (C::kDqTransposed) keep_keys();
      }
      const int head_place = S::place_of(p, item);
      const IntRange blocks = p.geometry.blocks_of(item.tile.index);
#pragma unroll 1
      for (int block = blocks.end - 1; block >= blocks.begin; --block) {
        if constexpr (C::kDraws) draw_ahead(item, items, block, blocks.begin);
        S::template wait_full<C::kDsStages>(C::kDsFull, count);
#pragma unroll
        for (int slice = 0; slice < C::kSlices; ++slice) make_slice(head_place + block, slice);
        ++count;
      }
      if (item.last() && lane == 0) mbarrier_arrive(S::barrier(C::kKeysEmpty));
    }
  }
};

}  // namespace transformer_kernels::cuda
