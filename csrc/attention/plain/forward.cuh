// SPDX-License-Identifier: MIT
// Forward pass on CUDA cores: a CTA owns a tile of queries of one head and walks over the keys that
// they see, with an online softmax, tile by tile. A CTA writes at most kGroups tiles of columns of
// the output; where there are more, several CTAs share the queries.
#pragma once

#include "attention/common/far_rows.h"
#include "attention/common/scores.cuh"
#include "attention/plain/tile.cuh"
#include "core/row_blocks.h"

namespace transformer_kernels::cuda {

// Whether a tile is full, and every score of it in sight.
template <class T>
__device__ __forceinline__ bool sees_tile(const HeadScores<T>& scores, const Sequence& s, int query,
                                          int key) {
  const int last_query = query + kPlainTile - 1;
  const int last_key = key + kPlainTile - 1;
  return last_query < s.queries && last_key < s.keys &&
         scores.all_seen(query, last_query, key, last_key);
}

// Products become scores; -inf for keys out of sight. `query` and `key` are those of this thread's
// square.
template <class T, class A = accumulate_t<T>>
__device__ __forceinline__ void scale_products(const HeadScores<T>& scores, const Sequence& s,
                                               bool all_seen, int query, int key,
                                               PlainSquare<A>& square) {
#pragma unroll
  for (int r = 0; r < kPlainOwned; ++r) {
#pragma unroll
    for (int c = 0; c < kPlainOwned; ++c) {
      const bool seen = all_seen || (key + c < s.keys && scores.sees(query + r, key + c));
      square[r][c] = seen ? scores.template score<false>(square[r][c], query + r, key + c).value
                          : -static_cast<A>(INFINITY);
    }
  }
}

// Products become scores where features change them: in shared memory, so that registers hold one
// row.
template <class T, class A = accumulate_t<T>>
__device__ __forceinline__ void finish_products(const HeadScores<T>& scores, const Sequence& s,
                                                int query, int key, A (*tile)[kPlainPitch],
                                                PlainSquare<A>& square) {
  const PlainThread own;
  write_square(tile, square);
#pragma unroll 1
  for (int r = 0; r < kPlainOwned; ++r) {
#pragma unroll
    for (int c = 0; c < kPlainOwned; ++c) {
      A& value = tile[own.col + c][own.row + r];
      const bool seen =
          query + r < s.queries && key + c < s.keys && scores.sees(query + r, key + c);
      value = seen ? scores.template score<true>(value, query + r, key + c).value
                   : -static_cast<A>(INFINITY);
    }
  }
  read_square(tile, square);
}

// The softmax of this thread's rows so far. The threads of a row agree on `top`; each holds the sum
// of its own columns.
template <class T>
struct RunningSoftmax {
  using A = accumulate_t<T>;
  using E = Exponent<T>;

  A top[kPlainOwned];
  A sum[kPlainOwned];

  // A sink counts as a column without a value.
  __device__ RunningSoftmax(bool has_sink, A sink, bool holds_sink) {
#pragma unroll
    for (int r = 0; r < kPlainOwned; ++r) {
      top[r] = has_sink ? sink : -static_cast<A>(INFINITY);
      sum[r] = has_sink && holds_sink ? 1 : 0;
    }
  }

  // Scores become powers around the top, which may rise; `rescale[r]` is what that makes of sums.
  __device__ __forceinline__ void add(PlainSquare<A>& scores, A (&rescale)[kPlainOwned]) {
#pragma unroll
    for (int r = 0; r < kPlainOwned; ++r) {
      A largest = top[r];
#pragma unroll
      for (int c = 0; c < kPlainOwned; ++c) largest = Max()(largest, scores[r][c]);
      largest = reduce_lanes<Max, kPlainThreadsPerRow>(largest);
      // Nothing seen yet: any finite top gives powers of 0.
      const A origin = largest == -static_cast<A>(INFINITY) ? 0 : largest;
      rescale[r] = E::power((top[r] - origin) * E::kPerNatural);
      top[r] = largest;
      sum[r] *= rescale[r];
#pragma unroll
      for (int c = 0; c < kPlainOwned; ++c) {
        scores[r][c] = E::power((scores[r][c] - origin) * E::kPerNatural);
        sum[r] += scores[r][c];
      }
    }
  }
};

// `row` is the place in lse of the first query of this thread's square.
template <class A>
__device__ __forceinline__ void drop(const Dropout<A>& dropout, std::int64_t row, int key,
                                     A (*tile)[kPlainPitch]) {
  const PlainThread own;
#pragma unroll 1
  for (int r = 0; r < kPlainOwned; ++r) {
    const PhiloxWords bits = dropout.bits(row + r, key);
#pragma unroll
    for (int c = 0; c < kPlainOwned; ++c) {
      tile[own.col + c][own.row + r] *= dropout.factor(bits, key + c);
    }
  }
}

template <class T, int kGroups>
__global__ void __launch_bounds__(kPlainThreads, 1)
    plain_forward_kernel(const __grid_constant__ AttentionForwardProblem p, int slices) {
  using A = accumulate_t<T>;
  using E = Exponent<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared<A>& shared = *reinterpret_cast<PlainShared<A>*>(memory);

  // Late queries see most keys of a causal problem: they come first.
  const RowBlocks blocks{p.q_offsets, p.batch, p.queries, kPlainTile};
  const int slice = static_cast<int>(blockIdx.x) % slices;
  const std::int64_t index = blockIdx.x / slices;
  const int head = static_cast<int>(index % p.heads);
  const RowBlocks::Place at = blocks[blocks.count() - 1 - index / p.heads];
  const Sequence s = p.sequence(at.batch);
  if (at.first >= s.queries) return;
  const int first_col = slice * kGroups * kPlainTile;
  const int kv_head = static_cast<int>(head / p.group());
  const int queries = static_cast<int>(s.queries);
  const int last = min(at.first + kPlainTile, queries);
  const std::int64_t row = p.row(at.batch, head);
  const PlainThread own;

  const PlainRows<T> q(p.q, at.batch, s.q_begin, head, s.queries, p.dim);
  const PlainRows<T> k(p.k, at.batch, s.k_begin, kv_head, s.keys, p.dim);
  const PlainRows<T> v(p.v, at.batch, s.k_begin, kv_head, s.keys, p.value_dim);
  const PlainRows<T> out(p.out, at.batch, s.q_begin, head, s.queries, p.value_dim);
  const HeadScores<T> scores(p, s, at.batch, head);
  const bool plain = has_plain_scores(p);

  RunningSoftmax<T> softmax(p.sinks.data != nullptr, p.sinks.at(0, head, A{0}), own.col == 0);
  PlainSquare<A> sum[kGroups] = {};
  const Range seen = p.visible(s, Range{at.first, last});
  for (int key = static_cast<int>(seen.begin) / kPlainTile * kPlainTile; key < seen.end;
       key += kPlainTile) {
    PlainSquare<A> tile;
    multiply_rows(shared, q, at.first, k, key, tile);
    const int query = at.first + own.row;
    if (plain) {
      scale_products(scores, s, sees_tile(scores, s, at.first, key), query, key + own.col, tile);
    } else {
      finish_products(scores, s, query, key + own.col, shared.scores, tile);
    }
    A rescale[kPlainOwned];
    softmax.add(tile, rescale);
    write_square(shared.scores, tile);
    if (p.drop_below != 0) drop(Dropout<A>(p), row + query, key + own.col, shared.scores);
#pragma unroll
    for (auto& square : sum) {
#pragma unroll
      for (int i = 0; i < kPlainOwned * kPlainOwned; ++i) {
        square[i / kPlainOwned][i % kPlainOwned] *= rescale[i / kPlainOwned];
      }
    }
    add_weighted_rows(shared, v, key, first_col, sum);
  }

  A total[kPlainOwned];
#pragma unroll
  for (int r = 0; r < kPlainOwned; ++r) {
    total[r] = reduce_lanes<Add, kPlainThreadsPerRow>(softmax.sum[r]);
  }
  store_result(out, at.first, first_col, sum,
               [&](int r) { return total[r] == 0 ? A{0} : 1 / total[r]; });
  if (p.lse == nullptr || slice != 0 || own.col != 0) return;
#pragma unroll
  for (int r = 0; r < kPlainOwned; ++r) {
    const int query = at.first + own.row + r;
    if (query >= queries) break;
    const LogSumExp<A> end = log_sum_exp(softmax.top[r], E::log(total[r]) * E::kNatural);
    static_cast<A*>(p.lse)[row + query] = end.lse;
    if (p.lse_rest != nullptr) static_cast<A*>(p.lse_rest)[row + query] = end.rest;
  }
}

}  // namespace transformer_kernels::cuda
