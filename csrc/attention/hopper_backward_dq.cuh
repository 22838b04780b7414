// SPDX-License-Identifier: MIT
// The warpgroup of the backward kernel on Hopper that makes dq of every block, where consumers make
// none: dQ^T = K^T dS, of all keys of the tile and 64 columns.
//
// Consumers leave dS in shared memory, and go on. Made this way round, the factor that registers
// can hold is K^T, which serves a whole tile: dS K would read K anew for every block.
#pragma once

#include "attention/hopper_backward_tile.cuh"
#include "core/cuda/mma.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct BackwardDqMaker : ConsumerThread<C, BackwardShared<C>> {
  using S = BackwardShared<C>;
  using Base = ConsumerThread<C, S>;
  using Base::columns_of, Base::ds_block, Base::first_sum, Base::lane, Base::release;
  using Base::same, Base::store_sums, Base::warp;
  using T = typename C::T;

  static constexpr int kSteps = kTileKeys / 16;
  static constexpr int kKept = kSteps - 1;  // there is no room for the last one

  const HopperBackward& p;
  std::uint32_t count = 0;  // of blocks
  float dq[32];
  std::uint32_t keys[4 * kKept];  // K^T, 16 keys a step

  __device__ BackwardDqMaker(const HopperBackward& problem, int warp_, int lane_)
      : Base(warp_, lane_),
        p(problem) {}

  // Of K, the warp's 16 columns.
  __device__ __forceinline__ void keep_keys() {
    const std::uint32_t row = S::at(C::kK) + (lane / 16 * 8 + lane % 8) * kSwizzleRow +
                              ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      std::uint32_t words[4];
      ldmatrix_x4_trans(words, row + i * 16 * kSwizzleRow);
#pragma unroll
      for (int j = 0; j < 4; ++j) keys[4 * i + j] = words[j];
    }
  }

  // dQ^T of one block.
  __device__ __forceinline__ void multiply() {
    const std::uint64_t ds = columns_of(ds_block(count));
    wgmma_fence();
    wgmma_first<T, Major::kOther>(dq, keys, ds);
#pragma unroll
    for (int i = 1; i < kKept; ++i) wgmma<T, Major::kOther>(dq, keys + 4 * i, ds + i * 128);
    wgmma<T, Major::kOther, Major::kOther>(dq, columns_of(C::kK) + kKept * 128, ds + kKept * 128);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dq);
    pin(keys);
  }

  __device__ __forceinline__ void run_block() {
    S::template wait_full<C::kDsStages>(C::kDsFull, count);
    multiply();
    release<C::kDsStages>(C::kDsEmpty, count);
    const int ring = C::maker_of_dq(count);
    const std::uint32_t n = C::dq_number(count);
    S::template wait_empty<C::kSumStages>(S::sums_empty(ring), n);
    store_sums(S::sums(ring, n) + first_sum(warp, lane) * 4, dq);
    fence_async_shared();
    __syncwarp();
    release<C::kSumStages>(S::sums_full(ring), n);
    ++count;
  }

  __device__ __forceinline__ void run() {
    for (std::uint32_t items = 0;; ++items) {
      const BackwardItem item = same(S::read_item(items));
      __syncwarp();
      if (lane == 0) S::release_item(items);
      if (item.none()) return;
      if (item.first()) {
        mbarrier_wait(S::barrier(C::kKeysFull), item.parity());
        keep_keys();
      }
      const int blocks = p.plan.blocks_of(item.tile.index).size();
#pragma unroll 1
      for (int i = 0; i < blocks; ++i) run_block();
      if (item.last() && lane == 0) mbarrier_arrive(S::barrier(C::kKeysEmpty));
    }
  }
};

}  // namespace transformer_kernels::cuda
