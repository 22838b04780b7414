// SPDX-License-Identifier: MIT
// A consumer of the forward kernel: a warpgroup with 64 queries of a tile.
//
// The row maximum is computed for every block, but it moves, and O is rescaled, only when it has
// grown by more than log(2^8). A softmax is the same whichever number it subtracts as long as
// nothing overflows, and sums in float32 are far from that. Warps with far rows subtract it before
// the exponential's multiply-add.
#pragma once

#include <cfloat>

#include "attention/common/far_rows.h"
#include "attention/sm90/forward/features.cuh"
#include "attention/sm90/forward/tiles.cuh"
#include "core/cuda/sm90/accumulator.cuh"
#include "core/cuda/sm90/swizzle.cuh"
#include "core/cuda/sm90/turn.cuh"

namespace transformer_kernels::cuda {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One warpgroup. A thread owns the parts of S, P and O that AccumulatorThread says: two rows.
template <class C>
class ForwardConsumer {
  using T = typename C::Element;
  using Queries = typename ForwardStorage<C>::Queries;
  using Keys = typename ForwardStorage<C>::Keys;
  static constexpr HopperForwardPlan kPlan = C::kPlan;
  static constexpr int kGroups = C::kGroups;
  static constexpr int kKeys = C::kKeys;
  static constexpr int kDim = kPlan.dim;
  // Named barriers, one for each warpgroup.
  static constexpr int kTurnBarriers = 1;
  static constexpr int kTailBarriers = kTurnBarriers + kGroups;
  static constexpr float kUnit = Exponent<T>::kPerNatural;
  static constexpr float kRange = 8 / kUnit;   // the maximum moves beyond 2^8
  static constexpr float kNothing = -FLT_MAX;  // the maximum of no keys

 public:
  __device__ __forceinline__ ForwardConsumer(const HopperForward& p,
                                             const ForwardStorage<C>& storage, int group)
      : p_(p),
        storage_(storage),
        q_(storage.queries()),
        k_(storage.keys()),
        v_(storage.values()),
        group_(group),
        own_{static_cast<int>(__shfl_sync(~0u, threadIdx.x / 32 % 4, 0)),
             static_cast<int>(threadIdx.x % 32)},
        scale_(p.scale),
        features_(p, storage, group, own_),
        turn_(group) {}

  __device__ __forceinline__ void run() {
    while (next_tile()) {
      if (at_.first < at_.end) {
        attend();
      } else {
        skip_tile();
      }
      finish();
    }
    mbarrier_arrive(storage_.out_full_of(q_.stage(), group_));
    if (group_ == 0) turn_.wait();
  }

 private:
  // -------------------------------------------------------------- tiles

  // REDUX puts a number of the whole warp into a uniform register.
  static __device__ __forceinline__ int uniform(int v) { return __reduce_max_sync(~0u, v); }

  __device__ __forceinline__ bool next_tile() {
    q_.wait();
    ForwardTile t = storage_.tiles[q_.stage()];
    t.batch = uniform(t.batch);
    if (t.batch < 0) return false;
    t.query = uniform(t.query);
    t.head = uniform(t.head);
    t.end = uniform(t.end);
    t.begin = uniform(t.begin);
    t.queries = uniform(t.queries);
    t.keys = uniform(t.keys);
    at_.tile = t;
    at_.query = t.query + 64 * group_;
    at_.shift = shift_of(p_.problem.bottom_right, t.queries, t.keys);
    at_.first = at_.end = t.begin;
    at_.full_from = 0;
    at_.full_end = t.keys / kKeys;
    if constexpr (C::kHasFeatures) features_.begin(at_);
    if (at_.query >= t.queries) return true;
    const int last = min(at_.query + 63, t.queries - 1);
    const IntRange seen = seen_keys<C>(p_, at_.query, last, at_.shift, t.keys);
    if (seen.begin < seen.end) {
      at_.first = seen.begin / kKeys;
      at_.end = (seen.end + kKeys - 1) / kKeys;
    }
    if constexpr (C::kWindow) {
      const IntRange full = band().seen_by_all(at_.query, at_.query + 63);
      at_.full_from = (full.begin + kKeys - 1) / kKeys;
      at_.full_end = max(full.end, 0) / kKeys;
    }
    return true;
  }

  __device__ __forceinline__ void release(Keys& blocks) {
    if (own_.lane == 0) blocks.release();
    blocks.advance();
  }
  __device__ __forceinline__ void skip(Keys& blocks) {
    blocks.wait();
    release(blocks);
  }
  // Every warpgroup has as many turns: one for each block but a tile's first.
  __device__ __forceinline__ void skip_turn() {
    turn_.wait();
    turn_.pass();
  }

  // No query of this warpgroup sees a key of the tile.
  __device__ __forceinline__ void skip_tile() {
#pragma unroll
    for (float& o : o_) o = 0;
    max_[0] = max_[1] = kNothing;
    sum_[0] = sum_[1] = 0;
    for (int block = at_.tile.begin; block < at_.tile.end; ++block) {
      skip(k_);
      skip(v_);
      if constexpr (C::kHasFeatures) features_.skip();
      if (block > at_.tile.begin) skip_turn();
    }
  }

  __device__ __forceinline__ void attend() {
    const int skipped = at_.tile.end - at_.end;
    for (int i = 0; i < skipped; ++i) {
      skip(k_);
      if constexpr (C::kHasFeatures) features_.skip();
      skip_turn();
    }
    start_scores(k_descriptor());
    wgmma_wait<0>();
    pin(s_);
    release(k_);
    max_[0] = max_[1] = kNothing;
    sum_[0] = sum_[1] = 0;
    move_max(at_.end - 1);
    exponentials(at_.end - 1);
    pack();
    for (int i = 0; i < skipped; ++i) skip(v_);
    if (p_.blocks.offsets != nullptr && at_.end * kKeys > at_.tile.keys) clear_tail();

    // P holds block + 1 here, and O the sums of the blocks above it.
    bool accumulate = false;
    for (int block = at_.end - 2; block >= at_.first; --block) {
      const std::uint64_t k = k_descriptor();
      const std::uint64_t v = v_descriptor();
      pin(s_);
      pin(o_);
      turn_.wait();
      start_scores(k);
      start_output(v, accumulate);
      turn_.pass();
      wgmma_wait<1>();
      pin(s_);
      release(k_);
      const bool moved = move_max(block);
      exponentials(block);
      pin(s_);  // else the compiler moves the exponentials behind the next wait
      wgmma_wait<0>();
      pin(o_);
      release(v_);
      pack();
      if (moved) rescale();
      accumulate = true;
    }
    const std::uint64_t v = v_descriptor();
    pin(o_);
    wgmma_fence();
    start_output(v, accumulate);
    wgmma_wait<0>();
    pin(o_);
    release(v_);
    for (int block = at_.first; block > at_.tile.begin; --block) {
      skip(k_);
      skip(v_);
      if constexpr (C::kHasFeatures) features_.skip();
      skip_turn();
    }
  }

  // -------------------------------------------------------------- products

  // Shuffled, so that the compiler sees that the address is the warp's.
  __device__ __forceinline__ std::uint64_t k_descriptor() {
    k_.wait();
    return matrix_descriptor(__shfl_sync(~0u, k_.data(), 0));
  }
  __device__ __forceinline__ std::uint64_t v_descriptor() {
    v_.wait();
    return matrix_descriptor(__shfl_sync(~0u, v_.data(), 0), kKeys * kSwizzleRow);
  }

  __device__ __forceinline__ void start_scores(std::uint64_t k) {
    const std::uint32_t rows = q_.data() + group_ * C::kGroupBytes;
    const std::uint64_t q = matrix_descriptor(__shfl_sync(~0u, rows, 0));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const std::uint64_t qi = q + (i / 4) * (64 * kSwizzleRow / 16) + i % 4 * 2;
      const std::uint64_t ki = k + (i / 4) * (kKeys * kSwizzleRow / 16) + i % 4 * 2;
      wgmma<T>(s_, qi, ki, i != 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void start_output(std::uint64_t v, bool accumulate) {
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      wgmma<T, Major::kOther>(o_, p_packed_ + 4 * i, v + i * (16 * kSwizzleRow / 16),
                              accumulate || i != 0);
    }
    wgmma_commit();
  }

  // -------------------------------------------------------------- softmax

  __device__ __forceinline__ int row(int half) const { return at_.query + own_.row(half); }
  // Made where it is asked for: the bounds of the window cost no registers in between.
  __device__ __forceinline__ Band band() const { return p_.band(at_.shift, at_.tile.keys); }

  // The thread's place, read anew: the loop over blocks keeps no registers for what follows from
  // it.
  __device__ __forceinline__ AccumulatorThread place_read_here() const {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return {own_.warp, lane};
  }

  // Scores of keys that are not seen become -inf.
  __device__ __forceinline__ void hide_unseen(int block) {
    const AccumulatorThread here = place_read_here();
    const int column = block * kKeys + here.col(0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = at_.query + here.row(half);
      int most = at_.tile.keys - 1;
      if constexpr (C::kWindow) most = min(most, band().last(query));
      const int least = C::kWindow ? band().first(query) - column : 0;
      most -= column;
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const bool seen = 8 * i + c <= most && (!C::kWindow || 8 * i + c >= least);
          if (!seen) s_[own_.sum(half, i) + c] = -INFINITY;
        }
      }
    }
  }

  __device__ __forceinline__ bool masked(int block) const {
    return block < at_.full_from || block >= at_.full_end;
  }

  __device__ __forceinline__ void finish_scores(int block) {
    if constexpr (C::kHasFeatures) features_.apply(at_, block, s_);
    if (masked(block)) hide_unseen(block);
  }

  // The score of the definition. It is rounded, so that the largest score of a far row equals its
  // maximum.
  __device__ __forceinline__ float score(float s, int half) const {
    if constexpr (C::kShifts) {
      return __fmaf_rn(s, p_.outer, features_.shift(half));
    } else {
      return __fmul_rn(s, p_.outer);
    }
  }

  // True where it has moved, and O has to be rescaled by factor_.
  __device__ __forceinline__ bool move_max(int block) {
    finish_scores(block);
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float a = s_[2 * half];
      float b = s_[2 * half + 1];
#pragma unroll
      for (int i = 1; i < kKeys / 8; ++i) {
        a = fmaxf(a, s_[own_.sum(half, i)]);
        b = fmaxf(b, s_[own_.sum(half, i) + 1]);
      }
      top[half] = score(fmaxf(a, b), half);
    }
    const bool seldom = top[0] > bound(0) || top[1] > bound(1);
    if (!__any_sync(~0u, seldom)) return false;
    const bool sees[2] = {top[0] > -INFINITY, top[1] > -INFINITY};
    const bool moves = __any_sync(~0u, top[0] > max_[0] + kRange || top[1] > max_[1] + kRange);
    if (moves) raise_max(top);
    const bool far = (sees[0] && is_far(max_[0])) || (sees[1] && is_far(max_[1]));
    if (__any_sync(~0u, far)) subtract_far();
    return moves;
  }

  // Above it a score moves the maximum, or is one of a far row. Derived anew at each block, as
  // registers are scarcer than instructions.
  __device__ __forceinline__ float bound(int half) const {
    return is_far(max_[half]) ? -INFINITY : max_[half] + kRange;
  }

  // The number that exponentials subtract, in units of Exponent: 0 in a far row, see
  // subtract_far().
  __device__ __forceinline__ float subtracted_from(int half) const {
    return is_far(max_[half]) ? 0 : max_[half] * kUnit;
  }

  __device__ __forceinline__ void raise_max(const float (&top)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
      highest = fmaxf(highest, max_[half]);
      factor_[half] = exp2_approximate((max_[half] - highest) * kUnit);
      sum_[half] *= factor_[half];
      max_[half] = highest;
    }
  }

  // Subtracts the maximum from a far row's scores, which are rounded as it was: so the difference,
  // which the exponential's multiply-add takes, is exact.
  __device__ __forceinline__ void subtract_far() {
#pragma unroll
    for (int n = 0; n < kKeys / 2; ++n) {
      const int half = n / 2 % 2;
      s_[n] = (score(s_[n], half) - (is_far(max_[half]) ? max_[half] : 0)) * p_.inverse_outer;
    }
    if constexpr (C::kShifts) features_.forget_shift();
  }

  __device__ __forceinline__ void exponentials(int block) {
    if constexpr (C::kHasFeatures) {
      // Hidden keys have to be 0, which polynomials do not give.
      if (features_.is_bounded() && !masked(block)) {
        exponentials_and_sums<kPlan.polynomials>();
      } else {
        exponentials_and_sums<0>();
      }
      features_.drop(at_, block, s_);
    } else {
      exponentials_and_sums<0>();
    }
  }

  // kPolynomials of 8 are polynomials.
  template <int kPolynomials>
  __device__ __forceinline__ void exponentials_and_sums() {
    float subtracted[2] = {subtracted_from(0), subtracted_from(1)};
    if constexpr (C::kShifts) {
      subtracted[0] = __fmaf_rn(features_.shift(0), -kUnit, subtracted[0]);
      subtracted[1] = __fmaf_rn(features_.shift(1), -kUnit, subtracted[1]);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& s = s_[4 * i + e];
        s = __fmaf_rn(s, scale_, -subtracted[e / 2]);
        s = (4 * i + e) * kPolynomials % 8 < kPolynomials ? exp2_polynomial(s)
                                                          : exp2_approximate(s);
      }
      sum_[0] += s_[4 * i];
      sum_[1] += s_[4 * i + 2];
      sum_[0] += s_[4 * i + 1];
      sum_[1] += s_[4 * i + 3];
    }
  }

  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p_packed_[i] = narrow_word<T>(s_ + 2 * i);
  }

  __device__ __forceinline__ void rescale() {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o_[i] *= factor_[i / 2 % 2];
  }

  // Rows after a sequence belong to the next one, or to none: P is 0 there, but 0 * NaN is not.
  // Every warpgroup clears them for itself; they all write the same.
  __device__ __forceinline__ void clear_tail() {
    v_.wait();
    const int kept = at_.tile.keys - (at_.end - 1) * kKeys;
    constexpr int kRowPieces = kSwizzleRow / 16;
    for (int i = threadIdx.x % 128; i < (kKeys - kept) * kRowPieces; i += 128) {
#pragma unroll
      for (int slab = 0; slab < kPlan.slabs(); ++slab) {
        store_shared(v_.data() + (slab * kKeys + kept) * kSwizzleRow + 16 * i, uint4{});
      }
    }
    fence_async_shared();
    named_barrier(kTailBarriers + group_, 128);
  }

  // -------------------------------------------------------------- results

  // Turns sums into what O is multiplied with, and into the log-sum-exp of the rows.
  __device__ __forceinline__ void finish() {
    const ForwardTile& t = at_.tile;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      float top = max_[half];
      float kept = 1;
      if (p_.problem.sinks.data != nullptr) {
        const float sink = p_.problem.sinks.at(0, t.head, 0.0f);
        const float higher = fmaxf(top, sink);
        kept = exp2_approximate((top - higher) * kUnit);
        sum = sum * kept + exp2_approximate((sink - higher) * kUnit);
        top = higher;
      }
      inverse[half] = sum > 0 ? __fdividef(kept, sum) : 0;
      if (sum != sum) inverse[half] = sum;
      if constexpr (C::kHasFeatures) inverse[half] *= p_.kept;
      const int query = row(half);
      if (p_.problem.lse != nullptr && own_.lane % 4 == 0 && query < t.queries) {
        const std::int64_t at = p_.blocks.offsets == nullptr
                                    ? (t.batch * p_.problem.heads + t.head) * p_.problem.queries
                                    : t.head * p_.problem.queries + t.q_begin;
        const LogSumExp<float> end = log_sum_exp(top, __log2f(sum) * Exponent<T>::kNatural);
        static_cast<float*>(p_.problem.lse)[at + query] = end.lse;
        if (p_.problem.lse_rest != nullptr) {
          static_cast<float*>(p_.problem.lse_rest)[at + query] = end.rest;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o_[i] *= inverse[i / 2 % 2];
    if (stored_by_tma(p_, t, at_.query)) {
      store_tile();
    } else {
      store_rows();
    }
    mbarrier_arrive(storage_.out_full_of(q_.stage(), group_));
    q_.advance();
  }

  // Through shared memory to the warp that stores.
  __device__ __forceinline__ void store_tile() const {
    const std::uint32_t rows = q_.data() + group_ * C::kGroupBytes;
    const AccumulatorThread here = place_read_here();
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const std::uint32_t slab = rows + i / 4 * 64 * kSwizzleRow;
      const float* o = o_ + 8 * i;
      store_matrices(swizzled_16x16<kSwizzleRow>(slab, 16 * here.warp, i % 4 * 2, here.lane),
                     narrow_word<T>(o), narrow_word<T>(o + 2), narrow_word<T>(o + 4),
                     narrow_word<T>(o + 6));
    }
    fence_async_shared();
  }

  // The last rows of a sequence, where a box would reach into the next one.
  __device__ __forceinline__ void store_rows() const {
    const HeadRows& out = p_.problem.out;
    const int columns = static_cast<int>(p_.problem.value_dim);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row(half) >= at_.tile.queries) continue;
      T* const to = static_cast<T*>(out.data) + (at_.tile.q_begin + row(half)) * out.row_stride +
                    at_.tile.head * out.head_stride + own_.col(0);
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        if (8 * i < columns) {
          *reinterpret_cast<std::uint32_t*>(to + 8 * i) = narrow_word<T>(o_ + own_.sum(half, i));
        }
      }
    }
  }

  const HopperForward& p_;
  const ForwardStorage<C>& storage_;
  Queries q_;
  Keys k_;
  Keys v_;
  const int group_;
  const AccumulatorThread own_;
  const float scale_;
  GroupTile at_;
  [[no_unique_address]] std::conditional_t<C::kHasFeatures, ForwardScores<C>, NoFeatures> features_;
  const Turn<kGroups, kTurnBarriers> turn_;  // made last, as it may be passed on at once

  float o_[kDim / 2];
  float s_[kKeys / 2];
  std::uint32_t p_packed_[kKeys / 4];
  float max_[2];
  float sum_[2];
  float factor_[2];
};

#endif  // sm_90a

}  // namespace transformer_kernels::cuda
