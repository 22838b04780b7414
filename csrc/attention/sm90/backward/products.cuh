// SPDX-License-Identifier: MIT
// The products of a consumer of the backward kernel on Hopper, and their registers.
#pragma once

#include <array>

#include "attention/sm90/backward/storage.cuh"
#include "core/cuda/mma.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct BackwardProducts : ConsumerThread<C, BackwardShared<C>> {
  using S = BackwardShared<C>;
  using Base = ConsumerThread<C, S>;
  using Base::columns_of, Base::ds_block, Base::key_step, Base::lane, Base::rows_of, Base::warp;
  using T = typename C::T;

  // The first kSteps steps of 16 columns of the consumer's own rows of K or V, in registers.
  template <int kSteps>
  struct KeptRows {
    std::array<std::uint32_t, 4 * kSteps> words;
  };

  const int own;            // which consumer
  std::uint32_t count = 0;  // of blocks

  float dk[C::kDim / 2], dv[C::kDim / 2];
  float s[32];   // S^T, then P^T
  float dp[32];  // dP^T
  std::uint32_t p_packed[16], ds_packed[16];
  KeptRows<C::kKeptOfK> own_k;
  KeptRows<C::kKeptOfV> own_v;

  __device__ BackwardProducts(int consumer, int warp_, int lane_)
      : Base(warp_, lane_),
        own(consumer) {}

  // ---------------------------------------------------------------- factors

  static __device__ __forceinline__ int q_block(std::uint32_t n) {
    return C::kQ + static_cast<int>(n % C::kQStages) * C::kRowsBytes;
  }
  static __device__ __forceinline__ int dout_block(std::uint32_t n) {
    return C::kDout + static_cast<int>(n % C::kDoutStages) * C::kRowsBytes;
  }
  __device__ __forceinline__ void keep_rows() {
    keep_rows(own_k, C::kK);
    keep_rows(own_v, C::kV);
  }
  template <int kSteps>
  __device__ __forceinline__ void keep_rows(KeptRows<kSteps>& kept, int rows) const {
    const std::uint32_t slab = S::at(rows) + own * C::kRowsBytes;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      std::uint32_t words[4];
      ldmatrix_x4(words, swizzled_16x16<kSwizzleRow>(slab, 16 * warp, 2 * i, lane));
#pragma unroll
      for (int j = 0; j < 4; ++j) kept.words[4 * i + j] = words[j];
    }
  }

  // ---------------------------------------------------------------- steps of products

  // The columns of dq that this consumer computes, over all keys.
  __device__ __forceinline__ std::uint64_t dq_keys() const {
    return columns_of(C::kK + (C::kSlices == 1 ? 0 : own * C::kSlabBytes));
  }

  static constexpr int kScoreSteps = C::kDim / 16;
  static constexpr int kQuerySteps = kBlockQueries / 16;
  static constexpr int kKeySteps = kTileKeys / 16;

  // The own rows of K or V that are not kept in registers.
  template <int kSteps>
  __device__ __forceinline__ std::uint64_t rows_beside(const KeptRows<kSteps>&, int rows) const {
    if constexpr (kSteps == kScoreSteps) {
      return 0;
    } else {
      return rows_of(rows + own * C::kRowsBytes);
    }
  }
  // S^T or dP^T: 16 columns of D. kBegun: the sums already hold their initial values.
  template <bool kBegun, int kSteps>
  static __device__ __forceinline__ void score_step(float (&sums)[32], const KeptRows<kSteps>& kept,
                                                    std::uint64_t keys, std::uint64_t queries,
                                                    int step) {
    const int at = step / 4 * (C::kSlabBytes / 16) + step % 4 * 2;
    const bool first = step == 0 && !kBegun;
    if (first && kSteps > 0) {
      wgmma_first<T, Major::kK>(sums, kept.words.data(), queries);
    } else if (step < kSteps) {
      wgmma<T, Major::kK>(sums, kept.words.data() + 4 * step, queries + at);
    } else if (first) {
      wgmma_first<T>(sums, keys, queries);
    } else {
      wgmma<T>(sums, keys + at, queries + at);
    }
  }
  // dV or dK: 16 queries.
  static __device__ __forceinline__ void gradient_step(float (&sums)[C::kDim / 2],
                                                       const std::uint32_t* factors,
                                                       std::uint64_t queries, int step) {
    wgmma<T, Major::kOther>(sums, factors + 4 * step, queries + step * 128);
  }
  // dQ: 16 keys. Its sums lie where those of scores do not.
  __device__ __forceinline__ float (&dq())[32] {
    if constexpr (C::kScoresAhead) {
      return dp;
    } else {
      return s;
    }
  }
  __device__ __forceinline__ void dq_step(std::uint64_t ds, std::uint64_t keys, int step) {
    if (step == 0) {
      wgmma_first<T, Major::kOther, Major::kOther>(dq(), ds, keys);
    } else {
      wgmma<T, Major::kOther, Major::kOther>(dq(), ds + step * 128, keys + key_step(step));
    }
  }

  // ---------------------------------------------------------------- products, one group each
  // Those with both operands in shared memory take all of its bandwidth, those with one in
  // registers half of it: taking turns, they hide each other.

  // S^T or dP^T, alone.
  template <bool kBegun, int kSteps>
  __device__ __forceinline__ void multiply_alone(float (&sums)[32], const KeptRows<kSteps>& kept,
                                                 int rows, int block) {
    const std::uint64_t keys = rows_beside(kept, rows);
    const std::uint64_t queries = rows_of(block);
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) {
      score_step<kBegun>(sums, kept, keys, queries, step);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_scores(std::uint32_t n) {
    multiply_alone<false>(s, own_k, C::kK, q_block(n));
  }
  __device__ __forceinline__ void multiply_dp() {
    multiply_alone<C::kDpBegun>(dp, own_v, C::kV, dout_block(count));
  }

  static __device__ __forceinline__ void multiply_gradient(float (&sums)[C::kDim / 2],
                                                           const std::uint32_t* factors,
                                                           int block) {
    const std::uint64_t queries = columns_of(block);
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) gradient_step(sums, factors, queries, step);
    wgmma_commit();
  }

  // dQ of the block before, alone.
  __device__ __forceinline__ void multiply_dq(std::uint32_t dq_count) {
    const std::uint64_t ds = rows_of(ds_block(dq_count));
    const std::uint64_t keys = dq_keys();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) dq_step(ds, keys, step);
    wgmma_commit();
  }

  // dQ of the block before, and dV or dK.
  __device__ __forceinline__ void multiply_dq_and_gradient(std::uint32_t dq_count,
                                                           float (&sums)[C::kDim / 2],
                                                           const std::uint32_t* factors,
                                                           int block) {
    const std::uint64_t ds = rows_of(ds_block(dq_count));
    const std::uint64_t keys = dq_keys();
    const std::uint64_t queries = columns_of(block);
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      dq_step(ds, keys, step);
      if (step % 2 == 1) gradient_step(sums, factors, queries, step / 2);
    }
    wgmma_commit();
  }

  // S^T of the next block, and dV or dK.
  __device__ __forceinline__ void multiply_scores_and_gradient(float (&sums)[C::kDim / 2],
                                                               const std::uint32_t* factors,
                                                               int block) {
    constexpr int kEvery = kScoreSteps / kQuerySteps;
    const std::uint64_t keys = rows_beside(own_k, C::kK);
    const std::uint64_t next = rows_of(q_block(count + 1));
    const std::uint64_t queries = columns_of(block);
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) {
      score_step<false>(s, own_k, keys, next, step);
      if (step % kEvery == kEvery - 1) gradient_step(sums, factors, queries, step / kEvery);
    }
    wgmma_commit();
  }
};

}  // namespace transformer_kernels::cuda
