// SPDX-License-Identifier: MIT
// The consumers of a CTA in a cluster: two warpgroups that work on the same 64 keys.
//
//   0, of values:  S^T = K Q^T,    P^T = exp(S^T - lse),        dV += P^T dO
//   1, of keys:    dP^T = V dO^T,  dS^T = P^T (dP^T - delta),   dK += dS^T Q
//
// P^T goes from 0 to 1 through shared memory, thread by thread; where dS^T needs other weights,
// those go instead. dS^T goes to the shared memory of both CTAs, and each CTA computes half of the
// columns of dQ = dS K over all 128 keys: half as many sums as a CTA alone would add to dq in
// memory.
#pragma once

#include "attention/sm90/backward/far.cuh"
#include "attention/sm90/backward/features.cuh"
#include "attention/sm90/backward_cluster/storage.cuh"
#include "core/cuda/pack.cuh"

namespace transformer_kernels::cuda {

template <class C, int kOwn>
struct ClusterConsumer : ConsumerThread<C, ClusterShared<C>> {
  using S = ClusterShared<C>;
  using Base = ConsumerThread<C, S>;
  using Base::columns_of, Base::lane, Base::release, Base::rows_of, Base::same, Base::same_result;
  using Base::warp;
  using T = typename C::T;

  static constexpr int kDqColumns = C::dq_columns(kOwn);
  static constexpr int kScoreSteps = C::kDim / 16;
  static constexpr int kQuerySteps = kBlockQueries / 16;
  static constexpr int kKeySteps = 4;  // of one CTA

  const HopperBackward& p;
  const int rank;
  std::uint32_t count = 0;  // of blocks
  std::uint32_t items = 0;

  float sums[C::kDim / 2];  // dV or dK
  float scores[32];         // S^T or dP^T
  float dq[kDqColumns / 2];
  std::uint32_t factors[16];  // P^T or dS^T

  __device__ ClusterConsumer(const HopperBackward& problem, int rank_, int warp_, int lane_)
      : Base(warp_, lane_),
        p(problem),
        rank(rank_) {}

  // ---------------------------------------------------------------- memory

  static __device__ __forceinline__ int ds_block(std::uint32_t n) {
    return C::kDs + static_cast<int>(n % C::kDsStages) * C::kDsBytes;
  }

  // The statistics of two columns of each 8 among 16.
  __device__ __forceinline__ float4 statistic(std::uint32_t fill, int columns_16) const {
    return load_shared_floats(S::at(S::statistics(fill)) + columns_16 * 64 + lane % 4 * 16);
  }

  template <int kStages>
  __device__ __forceinline__ void release_in_cluster(int first, std::uint32_t n) const {
    if (lane < C::kCtas) {
      mbarrier_arrive_remote(map_to_rank(S::template barrier<kStages>(first, n), lane));
    }
  }
  __device__ __forceinline__ void release_rows(std::uint32_t fill) const {
    release_in_cluster<C::kRowStages>(C::kRowsEmpty, fill);
  }
  __device__ __forceinline__ void wait_rows(std::uint32_t fill) const {
    S::template wait_full<C::kRowStages>(C::kRowsFull, fill);
  }

  // ---------------------------------------------------------------- products, one group each

  // S^T or dP^T of the own keys.
  __device__ __forceinline__ void multiply_scores(int own_rows, std::uint32_t fill) {
    const std::uint64_t keys = rows_of(own_rows);
    const std::uint64_t queries = rows_of(S::row_stage(fill));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) {
      const int at = step / 4 * (C::kSlabBytes / 16) + step % 4 * 2;
      if (step == 0) {
        wgmma_first<T>(scores, keys, queries);
      } else {
        wgmma<T>(scores, keys + at, queries + at);
      }
    }
    wgmma_commit();
  }

  // dV or dK.
  __device__ __forceinline__ void multiply_gradient(std::uint32_t fill) {
    const std::uint64_t queries = columns_of(S::row_stage(fill));
    pin(factors);
    pin(sums);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kQuerySteps; ++step) {
      wgmma<T, Major::kOther>(sums, factors + 4 * step, queries + step * 128);
    }
    wgmma_commit();
  }

  // Call after wgmma_wait: keeps the compiler from reusing the factors' registers while wgmma still
  // reads them.
  __device__ __forceinline__ void keep_factors() {
    if constexpr (C::kRagged) pin(factors);
  }

  // The own columns of dQ: keys of this CTA, then those of the other.
  __device__ __forceinline__ void multiply_dq(std::uint32_t n) {
    const int column = C::dq_first_column(kOwn, rank);
    const int in_slab = column % 64 * 2;
    const std::uint64_t ds = rows_of(ds_block(n) + rank * C::kSlabBytes);
    const std::uint64_t other_ds = rows_of(ds_block(n) + (1 - rank) * C::kSlabBytes);
    const std::uint64_t keys = columns_of(C::kK + column / 64 * C::kSlabBytes + in_slab);
    const std::uint64_t other_keys = columns_of(C::kOtherK + kOwn * C::kSlabBytes + in_slab);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      if (step == 0) {
        wgmma_first<T, Major::kOther, Major::kOther>(dq, ds, keys);
      } else {
        wgmma<T, Major::kOther, Major::kOther>(dq, ds + step * 128, keys + step * 128);
      }
    }
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      wgmma<T, Major::kOther, Major::kOther>(dq, other_ds + step * 128, other_keys + step * 128);
    }
    wgmma_commit();
  }

  // Sums are added as they lie in registers. A block of queries, which is number `place` among
  // those of all heads, in ragged configurations of the head, has 4 KB for each warp and 64
  // columns.
  __device__ __forceinline__ void add_dq(int place, std::uint32_t n) {
    pin(dq);
    release_in_cluster<C::kDsStages>(C::kDsEmpty, n);
    const bool in_turn = C::ordered(p);
    if (in_turn) S::template wait_full<1>(C::kTurn + kOwn, C::dq_number(n));
    if constexpr (C::kRagged) place += S::item_word(items, WorkItem::kPlace);
    const int column = C::dq_first_column(kOwn, rank);
    float* const to = p.dq + static_cast<std::int64_t>(place) * (C::kDim * kBlockQueries) +
                      (column / 64 * 4096 + warp * 1024 + column % 64 * 16 + lane * 4);
#pragma unroll
    for (int i = 0; i < kDqColumns / 8; ++i) {
      global_reduce_add(to + i * 128,
                        make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]));
    }
    if (in_turn) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(S::barrier(C::kAdded + kOwn));
    }
  }

  // dQ of the last block.
  __device__ __forceinline__ void end_blocks(int place) {
    S::template wait_full<C::kDsStages>(C::kDsFull, count - 1);
    multiply_dq(count - 1);
    wgmma_wait<0>();
    add_dq(place, count - 1);
  }

  // ---------------------------------------------------------------- results

  // The factor of dropout that gradients still lack, where it is left to the end.
  __device__ __forceinline__ float grown_by() const {
    return C::kWeights ? p.features.grown_by : 1;
  }

  // Stores a gradient through the rows of v, or k, when they are no longer read.
  __device__ __forceinline__ void send_gradient(const CUtensorMap& map, std::int64_t columns,
                                                int rows, float factor,
                                                const WorkItem& item) const {
    Base::store_gradient(rows, sums, factor);
    fence_async_shared();
    named_barrier(1 + kOwn, 128);
    if (warp != 0 || lane != 0) return;
    const int key = item.tile.first_key() + 64 * rank;
    if (key < S::geometry_of(p, item).keys) {
      BoxOrigin box = S::box_of_keys(p, item, rank);
#pragma unroll
      for (int i = 0; i < C::kSlabs; ++i) {
        if (C::kRagged && 64 * i >= columns) break;  // see map_of()
        box.at[0] = 64 * i;
        tensor_store(map, box, S::at(rows + i * C::kSlabBytes));
      }
    }
    bulk_commit();
    bulk_wait_read<0>();
    mbarrier_arrive(S::barrier(C::kKeysEmpty));
  }

  // ---------------------------------------------------------------- items

  __device__ __forceinline__ WorkItem read_item() const { return same(S::read_item(items)); }
  __device__ __forceinline__ typename S::Geometry geometry() const {
    return S::geometry_at(p, items);
  }
  __device__ __forceinline__ int own_key() const {
    return same(S::tile_index(items)) * kTileKeys + 64 * rank;
  }

  template <class Role>
  __device__ __forceinline__ void run_items(Role&& role) {
    for (;; ++items) {
      const WorkItem item = read_item();
      if (item.none()) break;
      if (item.first()) {
        mbarrier_wait(S::barrier(C::kKeysFull), item.parity());
#pragma unroll
        for (int i = 0; i < C::kDim / 2; ++i) sums[i] = 0;
      }
      const IntRange seen = geometry().blocks_of(item.tile.index);
      const IntRange blocks = {same_result(seen.begin), same_result(seen.end)};
      const int place = C::kRagged ? 0 : S::place_of(p, item);
      if (!blocks.empty()) role.run_blocks(blocks, place);
      const WorkItem done = read_item();
      if (done.last()) role.finish_tile(done);
      __syncwarp();
      if (lane == 0) S::release_item(items);
    }
    if (warp == 0 && lane == 0) bulk_wait<0>();
    __syncwarp();
  }

  // All blocks of a tile and a query head, the last one first.
  template <class Role>
  __device__ __forceinline__ void run_steps(Role&& role, IntRange blocks, int place) {
    int block = blocks.end - 1;
    role.begin_blocks(block);
    if (block == blocks.begin) {
      role.template step<true, true>(block, place);
    } else {
      role.template step<true, false>(block, place);
      for (--block; block > blocks.begin; --block) role.template step<false, false>(block, place);
      role.template step<false, true>(block, place);
    }
    role.end_blocks(place + block);
  }
};

// ------------------------------------------------------------------ values

template <class C>
struct ValueConsumer : ClusterConsumer<C, 0> {
  using Base = ClusterConsumer<C, 0>;
  using Base::Base, Base::count, Base::lane, Base::p, Base::geometry, Base::rank, Base::warp;
  using typename Base::S;
  using typename Base::T;

  // The state of the next block.
  bool masked;  // whether some query does not see some own key
  BackwardAhead ahead;
  std::uint32_t weights[16];  // of dS^T, where they are not P^T

  // Products may be anything where they are not seen.
  __device__ __forceinline__ void hide_unseen(int block, float hidden) {
    const int column = block * kBlockQueries + lane % 4 * 2;
    const int key = Base::own_key() + warp * 16 + lane / 4;
    typename S::Geometry of_item = geometry();
    const BackwardGeometry::Seen upper = of_item.seen_by(key, column);
    const BackwardGeometry::Seen lower = of_item.seen_by(key + 8, column);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = i / 4 * 8 + i % 2;
      if (!(i % 4 < 2 ? upper : lower).has(at)) Base::scores[i] = hidden;
    }
  }

  __device__ __forceinline__ bool is_masked(int block) const {
    const int key = Base::own_key();
    const IntRange unmasked = geometry().unmasked_blocks(key, key + 63);
    return Base::same_result(block < unmasked.begin || block >= unmasked.end);
  }

  __device__ __forceinline__ BackwardScores<C> features(int block) const {
    return {p.features, Base::items, block * kBlockQueries, 4 * rank + warp, lane};
  }

  // Prepares block number n while its products run.
  __device__ __forceinline__ void look_ahead(int block, std::uint32_t n) {
    masked = is_masked(block);
    if constexpr (C::kWeights) {
      features(block).look_ahead(n, ahead);
      features(block).template draw<0>(ahead);
      features(block).template draw<1>(ahead);
    }
  }

  // S^T of block number n -> P^T. lse is infinite for rows past the end and such that see no key.
  // The product of an unseen key is set to -inf where the scale is positive and the only factor;
  // otherwise its exponential is replaced.
  __device__ __forceinline__ void exponentiate(int block, std::uint32_t n) {
    pin(Base::scores);
    if (!C::kRagged && masked) hide_unseen(block, -INFINITY);
    if constexpr (C::kWeights) features(block).finish_scores(ahead, Base::scores, weights);
    const std::uint32_t fill = S::q_fill(n);
    if (has_far_origin(S::at(S::statistics(fill)), lane)) {
      exponentiate_far<T>(
          p, first_row_of_block<C, S>(p, Base::items, block),
          C::kWeights ? p.features.outer : p.scale, lane,
          [&](int i) { return Base::statistic(fill, i); }, Base::scores);
    } else {
      const float scale = C::kWeights ? p.features.outer_in_bits : p.scale_in_bits;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 lse = Base::statistic(fill, i);
        const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float& x = Base::scores[8 * i + j];
          x = exp2_approximate(__fmaf_rn(x, scale, -of[j / 4 * 2 + j % 2]));
        }
      }
    }
    if (C::kRagged && masked) hide_unseen(block, 0);
#pragma unroll
    for (int i = 0; i < 16; ++i) Base::factors[i] = narrow_word<T>(Base::scores + 2 * i);
    if constexpr (C::kWeights) weigh(block);
    __syncwarp();
    Base::release_rows(S::q_fill(n));
  }

  // A weight has a sign where dropout drops it.
  __device__ __forceinline__ void weigh(int block) {
    features(block).hide(ahead, Base::factors);
    features(block).weigh(Base::factors, weights, [&](const std::uint32_t(&words)[16]) {
#pragma unroll
      for (int i = 0; i < 16; ++i) weights[i] = words[i];
    });
    features(block).drop(ahead, [&](int i, std::uint32_t ones) {
      Base::factors[i] &= ones;
      weights[i] |= ~ones & C::kDropped;
    });
  }

  __device__ __forceinline__ void send_p(std::uint32_t n) const {
    const std::uint32_t* const sent = C::kWeights ? weights : Base::factors;
    S::template wait_empty<C::kPStages>(C::kPEmpty, n);
    const std::uint32_t to =
        S::at(C::kP + static_cast<int>(n % C::kPStages) * C::kPBytes) + (warp * kWarp + lane) * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t* const words = sent + 4 * i;
      store_shared(to + i * (128 * 16), make_uint4(words[0], words[1], words[2], words[3]));
    }
    __syncwarp();
    Base::template release<C::kPStages>(C::kPFull, n);
  }

  __device__ __forceinline__ void begin_blocks(int block) {
    Base::wait_rows(S::q_fill(count));
    Base::multiply_scores(C::kK, S::q_fill(count));
    look_ahead(block, count);
    wgmma_wait<0>();
    exponentiate(block, count);
    send_p(count);
  }

  // One block. On entry factors are its P^T, on return those of the next, unless it is the last.
  // dQ is that of the block before.
  template <bool kFirst, bool kLast>
  __device__ __forceinline__ void step(int block, int head_place) {
    Base::wait_rows(S::dout_fill(count));
    Base::multiply_gradient(S::dout_fill(count));
    if constexpr (!kFirst) {
      S::template wait_full<C::kDsStages>(C::kDsFull, count - 1);
      Base::multiply_dq(count - 1);
    }
    wgmma_wait<kFirst ? 0 : 1>();
    pin(Base::sums);
    Base::keep_factors();
    Base::release_rows(S::dout_fill(count));
    if constexpr (!kFirst) {
      wgmma_wait<0>();
      pin(Base::dq);
    }
    if constexpr (!kFirst && C::kSumsFirst) {
      Base::add_dq(head_place + block + 1, count - 1);
      __syncwarp();
    }
    if constexpr (!kLast) {
      Base::wait_rows(S::q_fill(count + 1));
      Base::multiply_scores(C::kK, S::q_fill(count + 1));
    }
    if constexpr (!kFirst && !C::kSumsFirst) Base::add_dq(head_place + block + 1, count - 1);
    if constexpr (!kLast) {
      look_ahead(block - 1, count + 1);
      wgmma_wait<0>();
      exponentiate(block - 1, count + 1);
      send_p(count + 1);
    }
    ++count;
  }

  __device__ __forceinline__ void run_blocks(IntRange blocks, int place) {
    Base::run_steps(*this, blocks, place);
  }
  // The keys' dP^T, which read v, came before the last dS.
  __device__ __forceinline__ void finish_tile(const WorkItem& item) const {
    Base::send_gradient(p.dv[0], p.features.problem.value_dim, C::kV, Base::grown_by(), item);
  }
  __device__ __forceinline__ void run() { Base::run_items(*this); }
};

// ------------------------------------------------------------------ keys

template <class C>
struct KeyConsumer : ClusterConsumer<C, 1> {
  using Base = ClusterConsumer<C, 1>;
  using Base::Base, Base::count, Base::lane, Base::p, Base::rank, Base::warp;
  using typename Base::S;
  using typename Base::T;

  // dS^T from dP^T, with P^T as it was rounded for dV.
  __device__ __forceinline__ void differentiate() {
    if (C::kWeights && p.features.problem.drop_below != 0) {
      differentiate<true>();
    } else {
      differentiate<false>();
    }
  }
  template <bool kDrops>
  __device__ __forceinline__ void differentiate() {
    S::template wait_full<C::kPStages>(C::kPFull, count);
    const std::uint32_t from = S::at(C::kP + static_cast<int>(count % C::kPStages) * C::kPBytes) +
                               (warp * kWarp + lane) * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 words = load_shared(from + i * (128 * 16));
      const float4 delta = Base::statistic(S::dout_fill(count), i);
      std::uint32_t weight[4] = {words.x, words.y, words.z, words.w};
      if constexpr (kDrops) {
        std::uint32_t kept[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          kept[j] = positive_halves<T>(weight[j]);
          weight[j] &= ~C::kDropped;
        }
        differentiate_scores<T>(weight, kept, Base::scores + 8 * i, delta, Base::factors + 4 * i);
      } else {
        differentiate_scores<T>(weight, Base::scores + 8 * i, delta, Base::factors + 4 * i);
      }
    }
    __syncwarp();
    Base::template release<C::kPStages>(C::kPEmpty, count);
    Base::release_rows(S::dout_fill(count));
  }

  // Sends dS^T to both CTAs; the other one counts the bytes.
  __device__ __forceinline__ void send_ds() const {
    S::template wait_empty<C::kDsStages>(C::kDsEmpty, count);
    const int to = Base::ds_block(count) + rank * C::kSlabBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) Base::store_columns(to, i, Base::factors + 4 * i);
    fence_async_shared();
    __syncwarp();
    if (lane == 0) announce_ds(to);
    __syncwarp();
  }

  // Announces the part of dS^T that this warp has stored, and copies it to the other CTA.
  __device__ __forceinline__ void announce_ds(int at) const {
    constexpr int kWarpBytes = 16 * kSwizzleRow;
    const std::uint32_t full = S::template barrier<C::kDsStages>(C::kDsFull, count);
    const std::uint32_t from = S::at(at) + warp * kWarpBytes;
    if (warp == 0) {
      mbarrier_arrive_expect(full, C::kSlabBytes);
    } else {
      mbarrier_arrive(full);
    }
    bulk_copy_cluster(map_to_rank(from, 1 - rank), from, kWarpBytes, map_to_rank(full, 1 - rank));
  }

  __device__ __forceinline__ void begin_blocks(int) {
    Base::wait_rows(S::dout_fill(count));
    Base::multiply_scores(C::kV, S::dout_fill(count));
    wgmma_wait<0>();
  }

  // One block. On entry scores are its dP^T, on return those of the next, unless it is the last. dQ
  // is that of the block before.
  template <bool kFirst, bool kLast>
  __device__ __forceinline__ void step(int block, int head_place) {
    pin(Base::scores);
    differentiate();
    send_ds();
    if constexpr (!kFirst) {
      S::template wait_full<C::kDsStages>(C::kDsFull, count - 1);
      Base::multiply_dq(count - 1);
    }
    Base::wait_rows(S::q_fill(count));
    Base::multiply_gradient(S::q_fill(count));
    if constexpr (!kLast) {
      Base::wait_rows(S::dout_fill(count + 1));
      Base::multiply_scores(C::kV, S::dout_fill(count + 1));
    }
    if constexpr (!kFirst) {
      wgmma_wait<kLast ? 1 : 2>();
      Base::add_dq(head_place + block + 1, count - 1);
    }
    wgmma_wait<0>();
    pin(Base::sums);
    Base::keep_factors();
    Base::release_rows(S::q_fill(count));
    ++count;
  }

  __device__ __forceinline__ void run_blocks(IntRange blocks, int place) {
    Base::run_steps(*this, blocks, place);
  }
  // Both consumers read k, for the last dQ.
  __device__ __forceinline__ void finish_tile(const WorkItem& item) const {
    S::template wait_empty<C::kDsStages>(C::kDsEmpty, count - 1 + C::kDsStages);
    Base::send_gradient(p.dk[0], p.features.problem.dim, C::kK, p.scale * Base::grown_by(), item);
  }
  __device__ __forceinline__ void run() { Base::run_items(*this); }
};

}  // namespace transformer_kernels::cuda
