// SPDX-License-Identifier: MIT
// Backward pass on CUDA cores. One kernel computes dq, dk or dv: a CTA owns a tile of rows of the
// gradient and walks over the rows on the other side of the scores, which it recomputes. Each
// gradient recomputes them, which costs 8 products instead of 5, and needs neither atomics nor
// memory that grows with the number of CTAs.
//
//   p = exp(z - lse - lse_rest),  dz = p * (keep * dout . v - delta),  ds = dz * softcap'
//   dv = (keep * p)^T dout,  dq = scale * ds k,  dk = scale * ds^T q,  delta = dout . out - dlse
#pragma once

#include "attention/common/row_gradients.cuh"
#include "attention/plain/forward.cuh"

namespace transformer_kernels::cuda {

struct PlainBackward : AttentionBackwardProblem {
  const void* statistics;  // RowStatistics, in the order of lse
};

enum class PlainGradient { kQ, kK, kV };

template <class A>
struct ScoreGradient {
  A kept;  // probability behind dropout
  A dz;    // of the score
  A ds;    // of scale * product
};

// `weight` is dout . v, `factor` that of dropout.
template <bool kHasFeatures, class T, class A = accumulate_t<T>>
__device__ __forceinline__ ScoreGradient<A> differentiate(const HeadScores<T>& scores, int query,
                                                          int key, const FarRow<T>& row, A delta,
                                                          A product, A weight, A factor) {
  const Score<A> z = scores.template score<kHasFeatures>(product, query, key);
  const A power = row.power(z.value);
  const A dz = power * (factor * weight - delta);
  return {power * factor, dz, dz * z.slope};
}

// The heads and the sequence that a tile of scores belongs to.
template <class T>
struct PlainHead {
  Sequence s;
  std::int64_t row;  // of its first query in lse
  PlainRows<T> q;
  PlainRows<T> k;
  PlainRows<T> v;
  PlainRows<T> dout;
  HeadScores<T> scores;

  __device__ PlainHead(const PlainBackward& p, const Sequence& sequence, int batch, int head)
      : s(sequence),
        row(p.row(batch, head)),
        q(p.q, batch, s.q_begin, head, s.queries, p.dim),
        k(p.k, batch, s.k_begin, kv_head(p, head), s.keys, p.dim),
        v(p.v, batch, s.k_begin, kv_head(p, head), s.keys, p.value_dim),
        dout(p.dout, batch, s.q_begin, head, s.queries, p.value_dim),
        scores(p, s, batch, head) {}

  static __device__ int kv_head(const PlainBackward& p, int head) {
    return static_cast<int>(head / p.group());
  }
};

// Turns this thread's square of a tile of products in shared.scores into pick(gradient), with dout
// . v in shared.weights(); 0 for keys out of sight. kKeysOwn: rows are keys, columns queries. The
// loop over queries keeps one in registers.
template <bool kHasFeatures, bool kKeysOwn, class T, class Pick, class A = accumulate_t<T>>
__device__ __forceinline__ void differentiate_tile(const PlainBackward& p, const PlainHead<T>& head,
                                                   const Dropout<A>& dropout, int first_query,
                                                   int first_key, PlainShared<A>& shared,
                                                   Pick&& pick) {
  const PlainThread own;
  const int query = first_query + (kKeysOwn ? own.col : own.row);
  const int key = first_key + (kKeysOwn ? own.row : own.col);
#pragma unroll 1
  for (int i = 0; i < kPlainOwned; ++i) {
    const bool exists = query + i < head.s.queries;
    RowStatistics<A> statistics{};
    PhiloxWords bits{};
    const std::int64_t place = head.row + query + i;
    if (exists) {
      statistics = static_cast<const RowStatistics<A>*>(p.statistics)[place];
      if (p.drop_below != 0) bits = dropout.bits(place, key);
    }
    const FarRow<T> power(p, place, statistics.origin);
#pragma unroll
    for (int j = 0; j < kPlainOwned; ++j) {
      const int row = own.row + (kKeysOwn ? j : i);
      const int col = own.col + (kKeysOwn ? i : j);
      const bool seen = exists && key + j < head.s.keys && head.scores.sees(query + i, key + j);
      const A factor = p.drop_below != 0 ? dropout.factor(bits, key + j) : A{1};
      A& score = shared.scores[col][row];
      score = seen ? pick(differentiate<kHasFeatures>(head.scores, query + i, key + j, power,
                                                      statistics.delta, score,
                                                      shared.weights()[col][row], factor))
                   : A{0};
    }
  }
}

// dout . v where it is wanted, and products, with what becomes of them.
template <bool kKeysOwn, bool kWeights, class T, class Pick, class A = accumulate_t<T>>
__device__ __forceinline__ void score_gradients(const PlainBackward& p, const PlainHead<T>& head,
                                                const Dropout<A>& dropout, int own, int other,
                                                PlainShared<A>& shared, Pick&& pick) {
  PlainSquare<A> square;
  multiply_rows(shared, kKeysOwn ? head.k : head.q, own, kKeysOwn ? head.q : head.k, other, square);
  write_square(shared.scores, square);
  if constexpr (kWeights) {
    multiply_rows(shared, kKeysOwn ? head.v : head.dout, own, kKeysOwn ? head.dout : head.v, other,
                  square);
    __syncthreads();
    write_square(shared.weights(), square);
  }
  const int query = kKeysOwn ? other : own;
  const int key = kKeysOwn ? own : other;
  if (has_plain_scores(p)) {
    differentiate_tile<false, kKeysOwn>(p, head, dropout, query, key, shared, pick);
  } else {
    differentiate_tile<true, kKeysOwn>(p, head, dropout, query, key, shared, pick);
  }
}

template <class T, int kGroups, PlainGradient kOf>
__global__ void __launch_bounds__(kPlainThreads, 1)
    plain_backward_kernel(const __grid_constant__ PlainBackward p, int slices) {
  using A = accumulate_t<T>;
  constexpr bool kKeysOwn = kOf != PlainGradient::kQ;
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared<A>& shared = *reinterpret_cast<PlainShared<A>*>(memory);

  const RowBlocks blocks{kKeysOwn ? p.k_offsets : p.q_offsets, p.batch,
                         kKeysOwn ? p.keys : p.queries, kPlainTile};
  const HeadRows& target = kOf == PlainGradient::kQ ? p.dq : kOf == PlainGradient::kK ? p.dk : p.dv;
  const std::int64_t heads = kKeysOwn ? p.kv_heads : p.heads;
  const std::int64_t dim = kOf == PlainGradient::kV ? p.value_dim : p.dim;
  const int first_col = static_cast<int>(blockIdx.x) % slices * kGroups * kPlainTile;
  const std::int64_t index = blockIdx.x / slices;
  const int own_head = static_cast<int>(index % heads);
  // Early keys and late queries have the most work under a causal mask: they come first.
  const std::int64_t block = index / heads;
  const RowBlocks::Place at = blocks[kKeysOwn ? block : blocks.count() - 1 - block];
  const Sequence s = p.sequence(at.batch);
  const std::int64_t rows = kKeysOwn ? s.keys : s.queries;
  if (at.first >= rows) return;

  const Dropout<A> dropout(p);
  const Range own_rows{at.first, min(static_cast<std::int64_t>(at.first + kPlainTile), rows)};
  const Range others = kKeysOwn ? p.seeing(s, own_rows) : p.visible(s, own_rows);
  const int group = kKeysOwn ? static_cast<int>(p.group()) : 1;
  PlainSquare<A> sum[kGroups] = {};
  for (int h = own_head * group; h < (own_head + 1) * group; ++h) {
    const PlainHead<T> head(p, s, at.batch, h);
    for (int other = static_cast<int>(others.begin) / kPlainTile * kPlainTile; other < others.end;
         other += kPlainTile) {
      score_gradients<kKeysOwn, kOf != PlainGradient::kV>(
          p, head, dropout, at.first, other, shared, [](const ScoreGradient<A>& gradient) {
            return kOf == PlainGradient::kV ? gradient.kept : gradient.ds;
          });
      add_weighted_rows(shared,
                        kOf == PlainGradient::kQ   ? head.k
                        : kOf == PlainGradient::kK ? head.q
                                                   : head.dout,
                        other, first_col, sum);
    }
  }
  const PlainRows<T> result(target, at.batch, kKeysOwn ? s.k_begin : s.q_begin, own_head, rows,
                            dim);
  const A scale = kOf == PlainGradient::kV ? 1 : static_cast<A>(p.scale);
  store_result(result, at.first, first_col, sum, [&](int) { return scale; });
}

// ---------------------------------------------------------------------------- bias

// The dimensions of bias: those that vary have tiles of their own, the others are summed over.
struct PlainBiasGrid {
  int batches, heads, query_tiles, key_tiles;

  explicit constexpr PlainBiasGrid(const PlainBackward& p)
      : batches(p.dbias.batch_stride ? static_cast<int>(p.batch) : 1),
        heads(p.dbias.head_stride ? static_cast<int>(p.heads) : 1),
        query_tiles(p.dbias.row_stride ? tiles(p.queries) : 1),
        key_tiles(p.dbias.col_stride ? tiles(p.keys) : 1) {}

  static constexpr int tiles(std::int64_t rows) {
    return static_cast<int>(divide_up(rows, kPlainTile));
  }
  constexpr std::int64_t ctas() const {
    return static_cast<std::int64_t>(batches) * heads * query_tiles * key_tiles;
  }
};

// [index, index + 1) of a dimension that varies, all of one that does not.
__device__ __forceinline__ Range summed(bool varies, std::int64_t index, std::int64_t size) {
  return varies ? Range{index, index + 1} : Range{0, size};
}

// A CTA owns a tile of dbias, of one row or column where bias is broadcast, and sums over every
// score that has it for a term, in a fixed order.
template <class T>
__global__ void __launch_bounds__(kPlainThreads, 1)
    plain_bias_kernel(const __grid_constant__ PlainBackward p) {
  using A = accumulate_t<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  PlainShared<A>& shared = *reinterpret_cast<PlainShared<A>*>(memory);

  const PlainBiasGrid grid(p);
  const ScoreMap& map = p.dbias;
  std::int64_t index = blockIdx.x;
  const std::int64_t key_tile = index % grid.key_tiles;
  index /= grid.key_tiles;
  const std::int64_t query_tile = index % grid.query_tiles;
  index /= grid.query_tiles;
  const std::int64_t own_head = index % grid.heads;
  const std::int64_t own_batch = index / grid.heads;
  const Range batches = summed(map.batch_stride != 0, own_batch, p.batch);
  const Range heads = summed(map.head_stride != 0, own_head, p.heads);
  const Range query_tiles = summed(map.row_stride != 0, query_tile, grid.tiles(p.queries));
  const Range key_tiles = summed(map.col_stride != 0, key_tile, grid.tiles(p.keys));

  const Dropout<A> dropout(p);
  PlainSquare<A> sum = {};
  const auto add_tile = [&](const PlainHead<T>& head, int query, int key) {
    score_gradients<false, true>(p, head, dropout, query, key, shared,
                                 [](const ScoreGradient<A>& gradient) { return gradient.dz; });
    PlainSquare<A> dz;
    read_square(shared.scores, dz);
#pragma unroll
    for (int i = 0; i < kPlainOwned * kPlainOwned; ++i) {
      sum[i / kPlainOwned][i % kPlainOwned] += dz[i / kPlainOwned][i % kPlainOwned];
    }
  };
  for (std::int64_t b = batches.begin; b < batches.end; ++b) {
    for (std::int64_t h = heads.begin; h < heads.end; ++h) {
      const PlainHead<T> head(p, p.sequence(b), static_cast<int>(b), static_cast<int>(h));
      for (std::int64_t i = query_tiles.begin; i < query_tiles.end; ++i) {
        for (std::int64_t j = key_tiles.begin; j < key_tiles.end; ++j) {
          add_tile(head, static_cast<int>(i) * kPlainTile, static_cast<int>(j) * kPlainTile);
        }
      }
    }
  }

  write_square(shared.scores, sum);
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  const bool one_row = map.row_stride == 0;
  const bool one_col = map.col_stride == 0;
  if (one_row && thread < kPlainTile) {
    for (int r = 1; r < kPlainTile; ++r) shared.scores[thread][0] += shared.scores[thread][r];
  }
  __syncthreads();
  if (one_col && thread < kPlainTile) {
    for (int c = 1; c < kPlainTile; ++c) shared.scores[0][thread] += shared.scores[c][thread];
  }
  __syncthreads();
  const std::int64_t first_row = query_tile * kPlainTile;
  const std::int64_t first_col = key_tile * kPlainTile;
  const std::int64_t rows = one_row ? 1 : min(p.queries - first_row, std::int64_t{kPlainTile});
  const std::int64_t cols = one_col ? 1 : min(p.keys - first_col, std::int64_t{kPlainTile});
  for (int i = thread; i < kPlainTile * kPlainTile; i += kPlainThreads) {
    const int r = i / kPlainTile;
    const int c = i % kPlainTile;
    if (r >= rows || c >= cols) continue;
    static_cast<A*>(map.data)[map.offset(own_batch, own_head, first_row + r, first_col + c)] =
        shared.scores[c][r];
  }
}

}  // namespace transformer_kernels::cuda
