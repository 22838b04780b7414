// SPDX-License-Identifier: MIT
// A consumer of the backward kernel on Hopper: a warpgroup that owns 64 keys.
//
//   S^T = K Q^T,  P^T = exp(S^T - lse - lse_rest),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta)
//   dV += P^T dO,  dK += dS^T Q,  dQ = dS K
//
// Rows of the first four are keys: P^T and dS^T stay in registers, as the operand A of dV and dK.
// dS^T goes to shared memory as well, where wgmma reads it as dS: the consumers' keys meet there,
// and only there. dQ of a block is computed one block later, so that no consumer waits for another,
// or by a separate warpgroup. The second consumer begins a little later than the first, so that
// each multiplies while the other does not.
//
// The order of a block's products, and of the steps between them, is a schedule: step_ahead.cuh,
// step_behind.cuh or step_beside.cuh.
#pragma once

#include "attention/sm90/backward/drawer.cuh"
#include "attention/sm90/backward/far.cuh"
#include "attention/sm90/backward/features.cuh"
#include "attention/sm90/backward/products.cuh"
#include "core/cuda/pack.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct BackwardConsumer : BackwardProducts<C> {
  using Base = BackwardProducts<C>;
  using Base::add_sums, Base::begin_turn, Base::end_turn;
  using Base::count, Base::dk, Base::dp, Base::ds_packed, Base::dv, Base::own, Base::p_packed;
  using Base::dout_block, Base::dq, Base::ds_block, Base::q_block, Base::s;
  using Base::lane, Base::release, Base::same, Base::same_of_item, Base::same_result;
  using Base::multiply_dp, Base::multiply_dq, Base::multiply_scores, Base::warp;
  using Base::multiply_dq_and_gradient, Base::multiply_gradient;
  using Base::multiply_scores_and_gradient;
  using Base::store_columns, Base::store_gradient;
  using typename Base::S;
  using typename Base::T;

  const HopperBackward& p;
  std::uint32_t items = 0;
  IntRange unmasked;  // of the item, where kept
  BackwardAhead ahead;

  // Keeps what follows from it out of registers: it is computed where it is needed.
  static __device__ __forceinline__ int anew(int v) {
    asm volatile("" : "+r"(v));
    return v;
  }
  // Whether this is the warpgroup's first thread.
  __device__ __forceinline__ bool leads() const {
    return (C::kHasFeatures || C::kSumsInShared ? anew(warp) : warp) == 0 && lane == 0;
  }

  __device__ BackwardConsumer(const HopperBackward& problem, int consumer, int warp_, int lane_)
      : Base(consumer, warp_, lane_),
        p(problem) {}

  // ---------------------------------------------------------------- between products

  // The statistics of two columns of each 8 among 16: lse; -delta lies kBlockQueries further on.
  __device__ __forceinline__ float4 statistic(std::uint32_t n, int columns_16, int which) const {
    return load_shared_floats(statistics(n) + which * kBlockQueries * 4 + columns_16 * 64 +
                              lane % 4 * 16);
  }
  static __device__ __forceinline__ std::uint32_t statistics(std::uint32_t n) {
    return S::at(C::kStatistics + static_cast<int>(n % C::kQStages) * C::kStatisticBytes);
  }

  // Values that follow from the item are recomputed at each use: registers are scarcer.
  __device__ __forceinline__ int own_key() const {
    return same_of_item(S::tile_index(items)) * kTileKeys + 64 * own;
  }
  __device__ __forceinline__ typename S::Geometry geometry() const {
    return S::geometry_at(p, items);
  }
  __device__ __forceinline__ int own_begin() const {
    typename S::Geometry of = geometry();
    const int key = own_key();
    return same_result(of.begin_block_of(key, of.blocks_of(key / kTileKeys)));
  }

  __device__ __forceinline__ void begin_tile(const WorkItem& item) {
    mbarrier_wait(S::barrier(C::kKeysFull), item.parity());
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) dk[i] = dv[i] = 0;
    Base::keep_rows();
  }

  // Where sums of dP^T begin with -delta.
  __device__ __forceinline__ void begin_dp() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 delta = statistic(count, i, 1);
      const float minus[4] = {delta.x, delta.y, delta.z, delta.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) dp[8 * i + j] = minus[j / 4 * 2 + j % 2];
    }
    pin(dp);
  }

  // Products and exponentials of unseen keys may have any value: they are replaced.
  __device__ __forceinline__ void hide_unseen(int block, int own_first_key) {
    const int column = block * kBlockQueries + lane % 4 * 2;
    const int key = own_first_key + warp * 16 + lane / 4;
    typename S::Geometry of_item = geometry();
    const BackwardGeometry::Seen upper = of_item.seen_by(key, column);
    const BackwardGeometry::Seen lower = of_item.seen_by(key + 8, column);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = i / 4 * 8 + i % 2;
      if (!(i % 4 < 2 ? upper : lower).has(at)) s[i] = 0;
    }
  }

  // Blocks of which every query sees all keys from this one on.
  __device__ __forceinline__ IntRange unmasked_from(int key) const {
    return geometry().unmasked_blocks(key, key + 63);
  }
  __device__ __forceinline__ void hide_where_unseen(int block) {
    if constexpr (C::kKeepsRange) {
      if (block < unmasked.begin || block >= unmasked.end) hide_unseen(block, own_key());
    } else {
      const int key = own_key();
      const IntRange range = unmasked_from(key);
      if (same_result(block < range.begin || block >= range.end)) hide_unseen(block, key);
    }
  }

  // ---------------------------------------------------------------- features

  // The scores of the next block.
  __device__ __forceinline__ BackwardScores<C> scores(int block) const {
    return {p.features, items, block * kBlockQueries, anew(own * 4 + warp), anew(lane)};
  }
  // Prepare a block's scores while products run: draw() during those of dP^T, look_ahead() during
  // those of S^T.
  __device__ __forceinline__ void draw(int block) {
    if constexpr (C::kWeights) scores(block).template draw<0>(ahead);
  }
  __device__ __forceinline__ void look_ahead(int block, std::uint32_t n) {
    if constexpr (C::kHasFeatures) scores(block).look_ahead(n, ahead);
    if constexpr (C::kWeights) scores(block).template draw<1>(ahead);
  }

  // S^T of block number n -> P^T. lse is infinite for rows past the end and such that see no key.
  __device__ __forceinline__ void exponentiate(int block, std::uint32_t n) {
    if constexpr (C::kScoresAhead) {
      std::uint32_t slopes[16];
      exponentiate(block, n, slopes);
    } else {
      exponentiate(block, n, ds_packed);
    }
  }
  __device__ __forceinline__ void exponentiate(int block, std::uint32_t n,
                                               [[maybe_unused]] std::uint32_t (&slopes)[16]) {
    if constexpr (C::kHasFeatures) scores(block).finish_scores(ahead, s, slopes);
    [[maybe_unused]] std::uint32_t bits[8];
    if constexpr (C::kDraws) load_bits(n, bits);
    if (same_result(is_marked_far(statistics(n)))) {
      exponentiate_far<T>(
          p, first_row_of_block<C, S>(p, items, block),
          C::kHasFeatures ? p.features.outer : p.scale, lane,
          [&](int i) { return statistic(n, i, 0); }, s);
    } else {
      const float scale = C::kHasFeatures ? p.features.outer_in_bits : p.scale_in_bits;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 lse = statistic(n, i, 0);
        const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float& x = s[8 * i + j];
          x = exp2_approximate(__fmaf_rn(x, scale, -of[j / 4 * 2 + j % 2]));
        }
      }
    }
    hide_where_unseen(block);
#pragma unroll
    for (int i = 0; i < 16; ++i) p_packed[i] = narrow_word<T>(s + 2 * i);
    if constexpr (C::kHasFeatures) scores(block).hide(ahead, p_packed);
    if constexpr (C::kDraws) {
      keep_weights(p_packed);
      drop_drawn(bits);
    }
    if constexpr (C::kWeights) {
      scores(block).weigh(p_packed, slopes, [&](const auto& weights) { keep_weights(weights); });
      scores(block).drop(ahead, [&](int i, std::uint32_t ones) { p_packed[i] &= ones; });
    }
    pin(p_packed);
  }

  // Loads the dropout bits of a block: word 4 half + i has a byte for each of four queries from 16
  // i on.
  __device__ __forceinline__ void load_bits(std::uint32_t n, std::uint32_t (&bits)[8]) const {
    S::template wait_full<C::kBitStages>(C::kBitsFull, n);
    const std::uint32_t from = S::bits(n) + anew(own * 4 + warp) * 128 + anew(lane) % 4 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 words = load_shared(from + half * 64);
      bits[4 * half] = words.x;
      bits[4 * half + 1] = words.y;
      bits[4 * half + 2] = words.z;
      bits[4 * half + 3] = words.w;
    }
  }
  // Takes what dropout drops from P^T.
  __device__ __forceinline__ void drop_drawn(const std::uint32_t (&bits)[8]) {
    const int to_sign = 7 - KeptBits::bit_of(anew(lane) / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t signs = bits[4 * half + i] << to_sign;
        p_packed[4 * i + half] &= repeat_signs<0x9988>(signs);
        p_packed[4 * i + 2 + half] &= repeat_signs<0xbbaa>(signs);
      }
    }
  }

  // dS^T from dP^T, with P^T as it was rounded for dV.
  __device__ __forceinline__ void differentiate() {
    if constexpr (C::kDraws) {
      differentiate<true>();
    } else if constexpr (C::kWeights) {
      p.features.problem.drop_below != 0 ? differentiate<true>() : differentiate<false>();
    } else {
      differentiate<false>();
    }
  }
  template <bool kDrops>
  __device__ __forceinline__ void differentiate() {
    const std::uint32_t at = C::kKeepsWeights ? weights_at() : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 delta = C::kDpBegun ? float4{} : statistic(count, i, 1);
      const uint4 words = weights(at, i);
      const std::uint32_t weight[4] = {words.x, words.y, words.z, words.w};
      if constexpr (kDrops) {
        std::uint32_t kept[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          kept[j] = p_packed[4 * i + j];
          // With softcap weights are others than P.
          if (C::kWeights) kept[j] = weight[j] & nonzero_halves<T>(kept[j]);
        }
        differentiate_scores<T>(weight, kept, dp + 8 * i, delta, ds_packed + 4 * i);
      } else if constexpr (C::kDpBegun) {
        const auto change = [&](int j) { return dp[8 * i + j]; };
        differentiate_scores<T>(weight, change, ds_packed + 4 * i);
      } else {
        differentiate_scores<T>(weight, dp + 8 * i, delta, ds_packed + 4 * i);
      }
    }
  }

  // Weights 8 i to 8 i + 7 of a lane, which no other lane reads.
  __device__ __forceinline__ std::uint32_t weights_at() const {
    return S::at(C::kWeightsAt) + (anew(own * 4 + warp) * 4 * kWarp + anew(lane)) * 16;
  }
  __device__ __forceinline__ void keep_weights(const std::uint32_t (&words)[16]) const {
    const std::uint32_t to = weights_at();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_shared(to + i * kWarp * 16,
                   {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]});
    }
  }
  __device__ __forceinline__ uint4 weights(std::uint32_t from, int i) const {
    if constexpr (C::kKeepsWeights) return load_shared(from + i * kWarp * 16);
    return {p_packed[4 * i], p_packed[4 * i + 1], p_packed[4 * i + 2], p_packed[4 * i + 3]};
  }
  // The factor of dropout that gradients still lack, where it is left to the end.
  __device__ __forceinline__ float grown_by() const {
    return C::kKeepsWeights ? p.features.grown_by : 1;
  }

  __device__ __forceinline__ void store_ds() {
    S::template wait_empty<C::kDsStages>(C::kDsEmpty, count);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_columns(ds_block(count) + own * C::kSlabBytes, i, ds_packed + 4 * i);
    }
    fence_async_shared();
    __syncwarp();
    release<C::kDsStages>(C::kDsFull, count);
  }

  // ---------------------------------------------------------------- sums of dq

  // dQ of a block of the head leaves.
  __device__ __forceinline__ void add_dq(int block, std::uint32_t dq_count) {
    pin(dq());
    release<C::kDsStages>(C::kDsEmpty, dq_count);
    const bool in_turn = C::takes_turns(p);
    if (in_turn) begin_turn(own, C::dq_number(dq_count));
    const int place = S::item_word(items, WorkItem::kPlace) + block;
    add_sums(p, place, C::kSlices == 1 ? 0 : own, dq());
    if (in_turn) end_turn(own);
  }

  // ---------------------------------------------------------------- blocks

  // One block. On entry p_packed holds its P^T, on return that of the next, unless it is the last.
  // kWithDq: and dQ of the block before.
  template <bool kWithDq, bool kLast>
  __device__ __forceinline__ void step(int block) {
    S::template wait_full<C::kDoutStages>(C::kDoutFull, count);
    if constexpr (!kLast) S::template wait_full<C::kQStages>(C::kQFull, count + 1);
    if constexpr (kWithDq) S::template wait_full<C::kDsStages>(C::kDsFull, count - 1);
    if constexpr (C::kScoresAhead) {
      step_ahead<kWithDq, kLast>(block);
    } else if constexpr (C::kHasDqMaker) {
      step_beside<kLast>(block);
    } else {
      step_behind<kWithDq, kLast>(block);
    }
    ++count;
  }

  // The ends of the products for dv, behind which those for dk may begin, and for dk. Factors in
  // registers are pinned after the wait for their products, which keeps the compiler from reusing
  // their registers earlier.
  __device__ __forceinline__ void end_dv() {
    wgmma_wait<0>();
    pin(dv);
    pin(p_packed);
    release<C::kDoutStages>(C::kDoutEmpty, count);
    pin(ds_packed);
    pin(dk);
    wgmma_fence();
  }
  __device__ __forceinline__ void end_dk() {
    wgmma_wait<0>();
    pin(dk);
    pin(ds_packed);
    release<C::kQStages>(C::kQEmpty, count);
  }

  // The schedules of a block, each in a file of its name.
  template <bool kWithDq, bool kLast>
  __device__ __forceinline__ void step_ahead(int block);
  template <bool kWithDq, bool kLast>
  __device__ __forceinline__ void step_behind(int block);
  template <bool kLast>
  __device__ __forceinline__ void step_beside(int block);

  // The second consumer begins an item when the first one has its probabilities of a block.
  __device__ __forceinline__ void follow() const {
    if (C::kStaggered && own == 1) S::template wait_full<C::kItemStages>(C::kBegun, items);
  }
  __device__ __forceinline__ void let_follow() const {
    if (C::kStaggered && own == 0) release<C::kItemStages>(C::kBegun, items);
  }

  __device__ __forceinline__ void begin_head(int block) {
    follow();
    S::template wait_full<C::kQStages>(C::kQFull, count);
    wgmma_fence();
    multiply_scores(count);
    draw(block);
    look_ahead(block, count);
    wgmma_wait<0>();
    pin(s);
    exponentiate(block, count);
    let_follow();
  }

  // dQ of the block before, with no other product beside it.
  __device__ __forceinline__ void finish_dq(int block) {
    if constexpr (C::kHasDqMaker) return;
    const std::uint32_t before = count - 1;
    if (!C::makes_dq(own, before)) {
      release<C::kDsStages>(C::kDsEmpty, before);
      return;
    }
    S::template wait_full<C::kDsStages>(C::kDsFull, before);
    wgmma_fence();
    multiply_dq(before);
    wgmma_wait<0>();
    add_dq(block, before);
  }

  // A block that sees keys of other consumers only.
  __device__ __forceinline__ void skip_block() {
    S::template wait_full<C::kQStages>(C::kQFull, count);
    release<C::kQStages>(C::kQEmpty, count);
    S::template wait_full<C::kDoutStages>(C::kDoutFull, count);
    release<C::kDoutStages>(C::kDoutEmpty, count);
    if constexpr (C::kHasFeatures) scores(0).skip_maps(count);
    // These bits are not read, but a wait that skips two phases of a barrier takes one for the
    // other.
    if constexpr (C::kDraws) S::template wait_full<C::kBitStages>(C::kBitsFull, count);
#pragma unroll
    for (int i = 0; i < 16; ++i) ds_packed[i] = 0;
    store_ds();
    ++count;
  }

  template <bool kLast>
  __device__ __forceinline__ void later_step(int block) {
    if (C::makes_dq(own, count - 1)) {
      step<true, kLast>(block);
    } else {
      release<C::kDsStages>(C::kDsEmpty, count - 1);
      step<false, kLast>(block);
    }
  }

  // All blocks of a tile and a query head, the last one first.
  __device__ __forceinline__ void run_item(const WorkItem& item) {
    int block = same_result(geometry().blocks_of(item.tile.index).end) - 1;
    const int begin = own_begin();
    if constexpr (C::kKeepsRange) {
      const IntRange range = unmasked_from(own_key());
      unmasked = {same(range.begin), same(range.end)};
    }
    if (block >= begin) {
      begin_head(block);
      if constexpr (C::kHasDqMaker) {
        for (; block > begin; --block) step<false, false>(block);
        step<false, true>(block);
      } else if (block == begin) {
        step<false, true>(block);
      } else {
        step<false, false>(block);
        for (--block; block > begin; --block) later_step<false>(block);
        later_step<true>(block);
      }
      finish_dq(block);
    } else {
      let_follow();
    }
    const int first = same_result(geometry().blocks_of(own_key() / kTileKeys).begin);
    if (own_begin() > first) {
      skip_block();
      finish_dq(first);
    }
  }

  // ---------------------------------------------------------------- results

  __device__ __forceinline__ void send_rows(const CUtensorMap* maps, int rows,
                                            BoxOrigin box) const {
#pragma unroll
    for (int i = 0; i < C::kSlabs; ++i) {
      box.at[0] = 64 * i;
      tensor_store(S::map_of(maps, i), box, S::at(rows + i * C::kSlabBytes));
    }
  }

  // dv and dk leave through the rows of v and k: no other consumer reads this one's rows of v, and
  // all read its rows of k for the last dQ.
  __device__ __forceinline__ void finish_tile(const WorkItem& item) {
    const int k_at = C::kK + own * C::kRowsBytes;
    const int v_at = C::kV + own * C::kRowsBytes;
    named_barrier(1 + own, 128);
    store_gradient(v_at, dv, grown_by());
    S::template wait_full<C::kDsStages>(C::kDsEmpty, count - 1);
    store_gradient(k_at, dk, p.scale * grown_by());
    fence_async_shared();
    named_barrier(1 + own, 128);
    if (!leads()) return;
    const int key = item.tile.first_key() + 64 * own;
    if (key < S::geometry_of(p, item).keys) {
      const BoxOrigin box = S::box_of_keys(p, item, own);
      send_rows(p.dv, v_at, box);
      send_rows(p.dk, k_at, box);
    }
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(S::barrier(C::kKeysEmpty));
  }

  __device__ __forceinline__ void finish_item(const WorkItem& item) {
    if (item.last()) finish_tile(item);
    __syncwarp();
    if (lane == 0) S::release_item(items);
  }

  __device__ __forceinline__ WorkItem read_item() const { return same(S::read_item(items)); }

  __device__ __forceinline__ void run() {
    for (;; ++items) {
      const WorkItem item = read_item();
      if (item.none()) break;
      if (item.first()) begin_tile(item);
      run_item(item);
      finish_item(read_item());
    }
    if (leads()) bulk_wait<0>();
  }
};

}  // namespace transformer_kernels::cuda
