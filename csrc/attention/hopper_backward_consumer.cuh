// SPDX-License-Identifier: MIT
// A consumer of the backward kernel on Hopper: a warpgroup that owns 64 keys.
//
//   S^T = K Q^T,  P^T = exp(S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta)
//   dV += P^T dO,  dK += dS^T Q,  dQ = dS K
//
// Rows of the first four are keys: P^T and dS^T stay in registers, as the A of dV and dK. dS^T goes
// to shared memory as well, where wgmma reads it as dS: the consumers' keys meet there, and only
// there. dQ of a block is made one block later, so that no consumer waits for another. The second
// consumer begins a little later than the first: each has products while the other has none.
#pragma once

#include "attention/hopper_backward_extras.cuh"
#include "attention/hopper_backward_tile.cuh"
#include "core/cuda/pack.cuh"

namespace transformer_kernels::cuda {

template <class C>
struct BackwardConsumer : ConsumerThread<C, BackwardShared<C>> {
  using S = BackwardShared<C>;
  using Base = ConsumerThread<C, S>;
  using Base::columns_of, Base::rows_of, Base::store_columns, Base::store_gradient;
  using Base::lane, Base::release, Base::same, Base::warp;
  using T = typename C::T;

  static constexpr int kShareSums = 64 * kBlockQueries;

  const HopperBackward& p;
  const int own;            // which consumer
  std::uint32_t count = 0;  // of blocks
  std::uint32_t items = 0;
  BlockRange unmasked;  // of the item, where kept

  float dk[C::kDim / 2], dv[C::kDim / 2];
  float s[32];   // S^T, then P^T; and between them dQ of the block before
  float dp[32];  // dP^T
  std::uint32_t p_packed[16], ds_packed[16];
  BackwardAhead ahead;

  // same() of what an item holds, or, where that is a lot, of what follows from it.
  static __device__ __forceinline__ int same_of_item(int v) { return C::kRagged ? v : same(v); }
  static __device__ __forceinline__ int same_result(int v) { return C::kRagged ? same(v) : v; }

  // Keeps what follows from it out of registers: it is computed where it is needed.
  static __device__ __forceinline__ int anew(int v) {
    asm volatile("" : "+r"(v));
    return v;
  }
  // Of the warpgroup.
  __device__ __forceinline__ bool leads() const {
    return (C::kExtras ? anew(warp) : warp) == 0 && lane == 0;
  }

  __device__ BackwardConsumer(const HopperBackward& problem, int consumer, int warp_, int lane_)
      : Base(warp_, lane_),
        p(problem),
        own(consumer) {}

  // ---------------------------------------------------------------- memory

  static __device__ __forceinline__ int q_block(std::uint32_t n) {
    return C::kQ + static_cast<int>(n % C::kQStages) * C::kRowsBytes;
  }
  static __device__ __forceinline__ int dout_block(std::uint32_t n) {
    return C::kDout + static_cast<int>(n % C::kDoutStages) * C::kRowsBytes;
  }
  static __device__ __forceinline__ int ds_block(std::uint32_t n) {
    return C::kDs + static_cast<int>(n % C::kDsStages) * C::kDsBytes;
  }
  // Of two columns of each 8 among 16: lse; -delta lies kBlockQueries behind.
  __device__ __forceinline__ float4 statistic(std::uint32_t n, int columns_16, int which) const {
    const int at = C::kStatistics + static_cast<int>(n % C::kQStages) * C::kStatisticBytes;
    return load_shared_floats(S::at(at) + which * kBlockQueries * 4 + columns_16 * 64 +
                              lane % 4 * 16);
  }

  // ---------------------------------------------------------------- steps of products

  // Of all keys, the columns of dq that this consumer makes.
  __device__ __forceinline__ std::uint64_t dq_keys() const {
    return columns_of(C::kK + (C::kShares == 1 ? 0 : own * C::kChunkBytes));
  }

  static constexpr int kScoreSteps = C::kDim / 16;
  static constexpr int kQuerySteps = kBlockQueries / 16;
  static constexpr int kKeySteps = kTileKeys / 16;

  // S^T or dP^T: 16 columns of D.
  static __device__ __forceinline__ void score_step(float (&sums)[32], std::uint64_t keys,
                                                    std::uint64_t queries, int step) {
    const int at = step / 4 * (C::kChunkBytes / 16) + step % 4 * 2;
    if (step == 0) {
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
  // dQ: 16 keys.
  __device__ __forceinline__ void dq_step(std::uint64_t ds, std::uint64_t keys, int step) {
    const int at = step / 4 * (C::kRowsBytes / 16) + step % 4 * 128;
    if (step == 0) {
      wgmma_first<T, Major::kOther, Major::kOther>(s, ds, keys);
    } else {
      wgmma<T, Major::kOther, Major::kOther>(s, ds + step * 128, keys + at);
    }
  }

  // ---------------------------------------------------------------- products, one group each
  // Those with both operands in shared memory take all of its bandwidth, those with one in
  // registers half of it: taking turns, they hide each other.

  __device__ __forceinline__ void multiply_scores(float (&sums)[32], int own_rows, int block) {
    const std::uint64_t keys = rows_of(own_rows + own * C::kRowsBytes);
    const std::uint64_t queries = rows_of(block);
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) score_step(sums, keys, queries, step);
    wgmma_commit();
  }

  static __device__ __forceinline__ void multiply_gradient(float (&sums)[C::kDim / 2],
                                                           const std::uint32_t* factors,
                                                           int block) {
    const std::uint64_t queries = columns_of(block);
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) gradient_step(sums, factors, queries, step);
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_dq_and_dv(std::uint32_t dq_count) {
    const std::uint64_t ds = rows_of(ds_block(dq_count));
    const std::uint64_t keys = dq_keys();
    const std::uint64_t queries = columns_of(dout_block(count));
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      dq_step(ds, keys, step);
      if (step % 2 == 1) gradient_step(dv, p_packed, queries, step / 2);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_dq(std::uint32_t dq_count) {
    const std::uint64_t ds = rows_of(ds_block(dq_count));
    const std::uint64_t keys = dq_keys();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) dq_step(ds, keys, step);
    wgmma_commit();
  }

  __device__ __forceinline__ void multiply_scores_and_dk() {
    constexpr int kEvery = kScoreSteps / kQuerySteps;
    const std::uint64_t keys = rows_of(C::kK + own * C::kRowsBytes);
    const std::uint64_t next = rows_of(q_block(count + 1));
    const std::uint64_t queries = columns_of(q_block(count));
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) {
      score_step(s, keys, next, step);
      if (step % kEvery == kEvery - 1) gradient_step(dk, ds_packed, queries, step / kEvery);
    }
    wgmma_commit();
  }

  // ---------------------------------------------------------------- between products

  // What follows from the item is computed anew where it is needed: registers are scarcer.
  __device__ __forceinline__ int own_key() const {
    return same_of_item(S::tile_index(items)) * kTileKeys + 64 * own;
  }
  __device__ __forceinline__ typename S::Plan plan() const {
    if constexpr (!C::kRagged) {
      return p.plan;
    } else {
      return p.plan.of(S::item_sequence(items));
    }
  }
  __device__ __forceinline__ int own_begin() const {
    typename S::Plan of = plan();
    const int key = own_key();
    return same_result(of.begin_block_of(key, of.blocks_of(key / kTileKeys)));
  }

  __device__ __forceinline__ void begin_tile(const BackwardItem& item) {
    mbarrier_wait(S::barrier(C::kKeysFull), item.parity());
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) dk[i] = dv[i] = 0;
  }

  // Products and exponentials of what is not seen may be anything: they are replaced.
  __device__ __forceinline__ void hide_unseen(int block, int own_first_key) {
    const int column = block * kBlockQueries + lane % 4 * 2;
    const int key = own_first_key + warp * 16 + lane / 4;
    typename S::Plan of_item = plan();
    const HopperBackwardPlan::Seen upper = of_item.seen_by(key, column);
    const HopperBackwardPlan::Seen lower = of_item.seen_by(key + 8, column);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = i / 4 * 8 + i % 2;
      if (!(i % 4 < 2 ? upper : lower).has(at)) s[i] = 0;
    }
  }

  // Blocks of which every query sees all keys from this one on.
  __device__ __forceinline__ BlockRange unmasked_from(int key) const {
    return plan().unmasked_blocks(key, key + 63);
  }
  __device__ __forceinline__ void hide_where_unseen(int block) {
    if constexpr (C::kKeepsRange) {
      if (block < unmasked.begin || block >= unmasked.end) hide_unseen(block, own_key());
    } else {
      const int key = own_key();
      const BlockRange range = unmasked_from(key);
      if (same_result(block < range.begin || block >= range.end)) hide_unseen(block, key);
    }
  }

  // ---------------------------------------------------------------- features

  // Of the block that is made next.
  __device__ __forceinline__ BackwardScores<C> scores(int block) const {
    return {p.extras, items, block * kBlockQueries, anew(own * 4 + warp), anew(lane)};
  }
  // What a block's scores need that can be had while products are made: `draw` while those of dP^T,
  // `look_ahead` while those of S^T.
  __device__ __forceinline__ void draw(int block) {
    if constexpr (C::kWeights) scores(block).template draw<0>(ahead);
  }
  __device__ __forceinline__ void look_ahead(int block, std::uint32_t n) {
    if constexpr (C::kExtras) scores(block).look_ahead(n, ahead);
    if constexpr (C::kWeights) scores(block).template draw<1>(ahead);
  }

  // S^T of block number n -> P^T. lse is infinite for rows past the end and such that see no key.
  __device__ __forceinline__ void exponentiate(int block, std::uint32_t n) {
    if constexpr (C::kExtras) scores(block).finish_scores(ahead, s, ds_packed);
    const float scale = C::kExtras ? p.extras.outer : p.scale_in_bits;
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
    hide_where_unseen(block);
#pragma unroll
    for (int i = 0; i < 16; ++i) p_packed[i] = narrow_word<T>(s + 2 * i);
    if constexpr (C::kExtras) scores(block).finish_probabilities(ahead, p_packed, ds_packed);
    pin(p_packed);
  }

  // dS^T from dP^T, with P^T as it was rounded for dV.
  __device__ __forceinline__ void differentiate() {
    if constexpr (C::kWeights) {
      p.extras.problem.drop_below != 0 ? differentiate<true>() : differentiate<false>();
    } else {
      differentiate<false>();
    }
  }
  template <bool kDrops>
  __device__ __forceinline__ void differentiate() {
    std::uint32_t weights_at = 0;
    if constexpr (C::kWeights) weights_at = scores(0).weights_at(0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 delta = statistic(count, i, 1);
      const float minus[4] = {delta.x, delta.y, delta.z, delta.w};
      const uint4 words = weights(weights_at, i);
      const std::uint32_t weight[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float x[2];
        widen_word<T>(weight[j / 2], x);
        if constexpr (kDrops) {
          // In units of what is kept: dK and dQ grow instead.
          float kept[2];
          widen_word<T>(weight[j / 2] & nonzero_halves<T>(p_packed[4 * i + j / 2]), kept);
          const float shrunk = p.extras.shrunk_by;
          x[0] = __fmaf_rn(x[0], minus[j / 4 * 2] * shrunk, kept[0] * dp[8 * i + j]);
          x[1] = __fmaf_rn(x[1], minus[j / 4 * 2 + 1] * shrunk, kept[1] * dp[8 * i + j + 1]);
        } else {
          x[0] *= dp[8 * i + j] + minus[j / 4 * 2];
          x[1] *= dp[8 * i + j + 1] + minus[j / 4 * 2 + 1];
        }
        ds_packed[4 * i + j / 2] = narrow_word<T>(x);
      }
    }
  }
  __device__ __forceinline__ uint4 weights(std::uint32_t from, int i) const {
    if constexpr (C::kWeights) return load_shared(from + i * kWarp * 16);
    return {p_packed[4 * i], p_packed[4 * i + 1], p_packed[4 * i + 2], p_packed[4 * i + 3]};
  }
  // What gradients lack where dropout's factor is left to the end.
  __device__ __forceinline__ float grown_by() const { return C::kWeights ? p.extras.grown_by : 1; }

  __device__ __forceinline__ void store_ds() {
    S::template wait_empty<C::kDsStages>(C::kDsEmpty, count);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_columns(ds_block(count) + own * C::kChunkBytes, i, ds_packed + 4 * i);
    }
    fence_async_shared();
    __syncwarp();
    release<C::kDsStages>(C::kDsFull, count);
  }

  // Sums are added as they lie in registers; each warp has 4 KB of its own in a block, which is
  // number `place` among those of all heads; in ragged configurations, of the head.
  __device__ __forceinline__ void add_dq(int place, std::uint32_t dq_count) {
    pin(s);
    release<C::kDsStages>(C::kDsEmpty, dq_count);
    const bool ordered = C::ordered(p);
    if (ordered) mbarrier_wait(S::barrier(C::kTurn + own), C::dq_parity(dq_count));
    if constexpr (C::kRagged) place += S::item_word(items, BackwardItem::kPlace);
    const int share = C::kShares == 1 ? 0 : own;
    float* const to = p.dq + static_cast<std::int64_t>(place * C::kShares + share) * kShareSums +
                      (warp * 1024 + lane * 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      global_reduce_add(to + i * 128,
                        make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]));
    }
    if (ordered) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(S::barrier(C::kAdded + own));
    }
  }

  // ---------------------------------------------------------------- blocks

  // Products that still run while dS is made: that of dV reads P^T, which the plain dS does too.
  // Where it is other weights that are read, the compiler would load them over P^T.
  static constexpr int kBesideDs = C::kWeights ? 0 : 1;
  // Where nothing runs beside, dQ may leave first, and its registers serve dS.
  static constexpr bool kAddsDqFirst = C::kWeights && !C::kStoresDsFirst;

  // One block. On entry p_packed holds its P^T, on return that of the next, unless it is the last.
  // kWithDq: and dQ of the block before. `head_place` is the place of the head's block 0 in dq.
  template <bool kWithDq, bool kLast>
  __device__ __forceinline__ void step(int block, int head_place) {
    S::template wait_full<C::kDoutStages>(C::kDoutFull, count);
    if constexpr (!kLast) S::template wait_full<C::kQStages>(C::kQFull, count + 1);
    if constexpr (kWithDq) S::template wait_full<C::kDsStages>(C::kDsFull, count - 1);
    pin(p_packed);
    pin(dv);
    wgmma_fence();
    multiply_scores(dp, C::kV, dout_block(count));
    if constexpr (kWithDq) {
      multiply_dq_and_dv(count - 1);
    } else {
      multiply_gradient(dv, p_packed, dout_block(count));
    }
    if constexpr (!kLast) draw(block - 1);
    wgmma_wait<kBesideDs>();
    pin(dp);
    if constexpr (C::kWeights) pin(p_packed);
    if constexpr (kWithDq && kAddsDqFirst) add_dq(head_place + block + 1, count - 1);
    differentiate();
    if constexpr (C::kStoresDsFirst) store_ds();
    wgmma_wait<0>();
    pin(dv);
    release<C::kDoutStages>(C::kDoutEmpty, count);
    if constexpr (kWithDq && !kAddsDqFirst) add_dq(head_place + block + 1, count - 1);
    pin(ds_packed);
    pin(dk);
    if constexpr (kWithDq && C::kSumsFirst) __syncwarp();
    wgmma_fence();
    if constexpr (kLast) {
      multiply_gradient(dk, ds_packed, q_block(count));
    } else {
      multiply_scores_and_dk();
    }
    if constexpr (!C::kStoresDsFirst) store_ds();
    if constexpr (!kLast) look_ahead(block - 1, count + 1);
    wgmma_wait<0>();
    pin(dk);
    release<C::kQStages>(C::kQEmpty, count);
    if constexpr (!kLast) {
      pin(s);
      exponentiate(block - 1, count + 1);
    }
    ++count;
  }

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
    multiply_scores(s, C::kK, q_block(count));
    draw(block);
    look_ahead(block, count);
    wgmma_wait<0>();
    pin(s);
    exponentiate(block, count);
    let_follow();
  }

  // dQ of the block before, with no other product beside it.
  __device__ __forceinline__ void finish_dq(int place) {
    const std::uint32_t before = count - 1;
    if (!C::makes_dq(own, before)) {
      release<C::kDsStages>(C::kDsEmpty, before);
      return;
    }
    S::template wait_full<C::kDsStages>(C::kDsFull, before);
    wgmma_fence();
    multiply_dq(before);
    wgmma_wait<0>();
    add_dq(place, before);
  }

  // A block that sees keys of other consumers only.
  __device__ __forceinline__ void skip_block() {
    S::template wait_full<C::kQStages>(C::kQFull, count);
    release<C::kQStages>(C::kQEmpty, count);
    S::template wait_full<C::kDoutStages>(C::kDoutFull, count);
    release<C::kDoutStages>(C::kDoutEmpty, count);
    if constexpr (C::kExtras) scores(0).skip_maps(count);
#pragma unroll
    for (int i = 0; i < 16; ++i) ds_packed[i] = 0;
    store_ds();
    ++count;
  }

  template <bool kLast>
  __device__ __forceinline__ void later_step(int block, int head_place) {
    if (C::makes_dq(own, count - 1)) {
      step<true, kLast>(block, head_place);
    } else {
      release<C::kDsStages>(C::kDsEmpty, count - 1);
      step<false, kLast>(block, head_place);
    }
  }

  // All blocks of a tile and a query head, the last one first.
  __device__ __forceinline__ void run_item(const BackwardItem& item) {
    const int head_place = C::kRagged ? 0 : S::place_of(p, item);
    int block = same_result(plan().blocks_of(item.tile.index).end) - 1;
    const int begin = own_begin();
    if constexpr (C::kKeepsRange) {
      const BlockRange range = unmasked_from(own_key());
      unmasked = {same(range.begin), same(range.end)};
    }
    if (block >= begin) {
      begin_head(block);
      if (block == begin) {
        step<false, true>(block, head_place);
      } else {
        step<false, false>(block, head_place);
        for (--block; block > begin; --block) later_step<false>(block, head_place);
        later_step<true>(block, head_place);
      }
      finish_dq(head_place + block);
    } else {
      let_follow();
    }
    const int first = same_result(plan().blocks_of(own_key() / kTileKeys).begin);
    if (own_begin() > first) {
      skip_block();
      finish_dq(head_place + first);
    }
  }

  // ---------------------------------------------------------------- results

  __device__ __forceinline__ void send_rows(const CUtensorMap& map, int rows, BoxOrigin box) const {
#pragma unroll
    for (int i = 0; i < C::kChunks; ++i) {
      box.at[0] = 64 * i;
      tensor_store(map, box, S::at(rows + i * C::kChunkBytes));
    }
  }

  // dv and dk leave over the rows of v and k: the own ones of v are read by nobody else, those of k
  // for the last dQ by all.
  __device__ __forceinline__ void finish_tile(const BackwardItem& item) {
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
    if (key < S::plan_of(p, item).keys) {
      const BoxOrigin box = S::box_of_keys(p, item, own);
      send_rows(p.dv, v_at, box);
      send_rows(p.dk, k_at, box);
    }
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(S::barrier(C::kKeysEmpty));
  }

  __device__ __forceinline__ void finish_item(const BackwardItem& item) {
    if (item.last()) finish_tile(item);
    __syncwarp();
    if (lane == 0) S::release_item(items);
  }

  __device__ __forceinline__ BackwardItem read_item() const {
    BackwardItem item = S::read_item(items);
    item.tile = {same(item.tile.index), same(item.tile.kv_head), same(item.tile.batch)};
    item.head = same(item.head);
    item.bits = same(item.bits);
    return item;
  }

  __device__ __forceinline__ void run() {
    for (;; ++items) {
      const BackwardItem item = read_item();
      if (item.none()) break;
      if (item.first()) begin_tile(item);
      run_item(item);
      finish_item(read_item());
    }
    if (leads()) bulk_wait<0>();
  }
};

}  // namespace transformer_kernels::cuda
