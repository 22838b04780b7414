// SPDX-License-Identifier: MIT
// The gradient of a bias on tensor cores. With p = power(score - origin), f the factor of dropout
// and delta of a row, see tensor_core_backward.cuh, the gradient of a score is
//
//   dz = p (f (dout v^T) - delta)
//
// and that of a bias the sum of dz over all scores that it is added to. A CTA keeps its tile of
// sums in registers and makes both products of each term anew; no two CTAs add to one place. A row
// of operands comes in chunks of 128 bytes, those of q and k and then those of dout and v, through
// a ring of stages that runs on over the ends of terms. What is broadcast is the same for all terms
// of a CTA: the tile of the bias waits in shared memory.
#pragma once

#include "attention/bias_gradient_plan.h"
#include "attention/tensor_core_product.cuh"
#include "attention/tensor_core_scores.cuh"
#include "attention/tensor_core_statistics.cuh"

namespace transformer_kernels::cuda {

// Rows of queries and keys that are multiplied with each other.
struct BiasFactors {
  HeadRows queries;
  HeadRows keys;
  int dim;
  int chunks;
};

struct BiasGradient {
  AttentionBackwardProblem problem;  // without the bias
  ScoreMap bias;
  BiasGradientPlan plan;
  BiasFactors factors[2];  // q and k, dout and v
  int group;               // heads of q that share one of k
  const RowStatistics* statistics;
  float* sums;  // dbias, or as many numbers for each share
};

template <class T>
inline constexpr int kBiasChunk = kBiasChunkBytes / static_cast<int>(sizeof(T));

// The lane's numbers of the bias, in the order of a fragment.
template <int kRows, int kCols, int kThreads>
struct KeptBias {
  float2* own;  // a pair of neighbours every kThreads

  template <class Body>
  __device__ __forceinline__ void for_each_pair(Fragment<kRows, kCols>& values, Body&& body) const {
    int index = 0;
#pragma unroll
    for (int slot = 0; slot < kRows / 8; ++slot) {
#pragma unroll
      for (int col = 0; col < kCols; col += 8) {
        body(own[index++ * kThreads], values(slot, col), values(slot, col + 1));
      }
    }
  }
  __device__ __forceinline__ void keep(Fragment<kRows, kCols>& bias) const {
    for_each_pair(bias, [](float2& kept, float x, float y) { kept = make_float2(x, y); });
  }
  __device__ __forceinline__ void add_to(Fragment<kRows, kCols>& scores) const {
    for_each_pair(scores, [](const float2& kept, float& x, float& y) {
      x += kept.x;
      y += kept.y;
    });
  }
};

// Takes from a warp's scores, from `first_query` and `first_key` on, those out of sight.
template <int kRows, int kCols>
__device__ __forceinline__ void hide_unseen(const Band& band, int queries, int first_query,
                                            int first_key, Fragment<kRows, kCols>& scores) {
  const int last_query = first_query + kRows - 1;
  if (last_query < queries && first_key >= band.begin(last_query) &&
      first_key + kCols <= band.end(first_query)) {
    return;
  }
  const Lane lane;
#pragma unroll
  for (int slot = 0; slot < kRows / 8; ++slot) {
    const int query = first_query + lane.row(slot);
    const int begin = band.begin(query) - first_key - lane.col();
    const int end = query < queries ? band.end(query) - first_key - lane.col() : 0;
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      const int col = i / 2 * 8 + i % 2;
      if (col < begin || col >= end) scores(slot, col) = -INFINITY;
    }
  }
}

// Writes a CTA's tile of sums, one row or column of it where the bias is broadcast along the other.
// `memory` has room for the tile.
template <BiasTile kTile, int kRows, int kCols>
__device__ __forceinline__ void store_bias_gradient(const ScoreMap& map, float* to, int rows,
                                                    int cols, int warp_row, int warp_col,
                                                    Fragment<kRows, kCols>& sums, float* memory) {
  constexpr int kThreads = kTile.threads();
  const Lane lane;
  const int own_row = warp_row + lane.row(0);
  const int own_col = warp_col + lane.col();
  if (map.row_stride != 0 && map.col_stride != 0) {
    sums.for_each([&](float& x, int slot, int col) {
      const int row = own_row + slot * 8;
      if (row < rows && own_col + col < cols) to[row * map.row_stride + own_col + col] = x;
    });
    return;
  }
  sums.for_each([&](float& x, int slot, int col) {
    memory[(own_row + slot * 8) * kTile.cols() + own_col + col] = x;
  });
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if (map.col_stride == 0) {
    for (int row = thread; row < kTile.rows(); row += kThreads) {
      float* const first = memory + row * kTile.cols();
      for (int col = 1; col < kTile.cols(); ++col) *first += first[col];
      if (map.row_stride != 0 && row < rows) to[row * map.row_stride] = *first;
    }
    __syncthreads();
  }
  if (map.row_stride != 0) return;
  const int kept_cols = map.col_stride != 0 ? cols : 1;
  for (int col = thread; col < kept_cols; col += kThreads) {
    float sum = 0;
    for (int row = 0; row < kTile.rows(); ++row) sum += memory[row * kTile.cols() + col];
    to[col] = sum;
  }
}

template <class T, class Plan>
__global__ void __launch_bounds__(Plan::tile.threads(), Plan::tile.ctas)
    bias_gradient_kernel(const __grid_constant__ BiasGradient a) {
  constexpr BiasTile kTile = Plan::tile;
  constexpr int kChunk = kBiasChunk<T>;
  constexpr int kRows = kTile.rows();
  constexpr int kCols = kTile.cols();
  constexpr int kThreads = kTile.threads();
  constexpr int kStages = kTile.stages;
  constexpr int kPitch = kBiasChunkBytes;
  using Scores = Fragment<kTile.warp_rows, kTile.warp_cols>;
  using Kept = KeptScores<kTile.warp_rows, kTile.warp_cols, true>;
  static_assert(kRows <= kThreads);
  static_assert(kStages <= 3);  // chunks of a third term would meet the statistics of the first
  static_assert(kStages * kTile.stage_bytes() >= kRows * kCols * static_cast<int>(sizeof(float)));

  // Stages, of rows of queries and of keys each, then the tile of the bias.
  extern __shared__ __align__(128) unsigned char shared[];
  // Registers are scarce: what the loop seldom needs waits here.
  __shared__ BiasTerms terms;
  __shared__ ScoreTile tiles[4];  // of the last four terms whose loads have begun, or are next
  __shared__ RowStatistics query_statistics[2][kRows];  // of even and odd terms
  __shared__ std::uint16_t kept_words[kTile.warps() * Kept::kBytes / 2];

  const AttentionBackwardProblem& p = a.problem;
  const Sequence s{0, p.queries, 0, p.keys};
  const int queries = static_cast<int>(p.queries);
  const int keys = static_cast<int>(p.keys);
  const Lane lane;
  const int warp_row = lane.warp / kTile.warps_across * kTile.warp_rows;
  const int warp_col = lane.warp % kTile.warps_across * kTile.warp_cols;
  if (threadIdx.x == 0) {
    terms = a.plan.terms(p, blockIdx.x);
    if (terms.count > 0) tiles[0] = terms.grid[terms.begin];
  }
  __syncthreads();

  const std::uint32_t stages = shared_address(shared);
  int next_term = 0;
  int next_chunk = 0;
  const auto fetch = [&](int stage) {
    if (next_term < terms.count) {
      const bool scores = next_chunk < a.factors[0].chunks;
      const BiasFactors& factors = a.factors[scores ? 0 : 1];
      const int chunk = scores ? next_chunk : next_chunk - a.factors[0].chunks;
      const ScoreTile at = tiles[next_term % 4];
      const ScoreTile tile = terms.first + at;
      const int first_query = tile.query_tile * kRows;
      const auto chunk_of = [&](const HeadRows& rows, int head) {
        GlobalRows<T> from(rows, tile.batch, 0, head, factors.dim - chunk * kChunk);
        from.data += chunk * kBiasChunkBytes;
        return from;
      };
      const std::uint32_t target = stages + stage * kTile.stage_bytes();
      copy_rows<kChunk, kRows, kThreads>(target, chunk_of(factors.queries, tile.head), first_query,
                                         queries);
      copy_rows<kChunk, kCols, kThreads>(target + kRows * kPitch,
                                         chunk_of(factors.keys, tile.head / a.group),
                                         tile.key_tile * kCols, keys);
      if (next_chunk == 0) {
        const int i = static_cast<int>(threadIdx.x);
        if (i < kRows) {
          const bool valid = first_query + i < queries;
          const std::int64_t row = p.row(tile.batch, tile.head) + first_query + i;
          cp_async<8>(shared_address(&query_statistics[next_term % 2][i]),
                      a.statistics + (valid ? row : 0), valid);
        }
        if (i == 0) tiles[(next_term + 1) % 4] = terms.grid.after(at);
      }
      if (++next_chunk == a.factors[0].chunks + a.factors[1].chunks) {
        next_chunk = 0;
        ++next_term;
      }
    }
    cp_async_commit_group();
  };
  int stage = 0;
  // The next chunk of both operands; the stage of the one before it is free for another.
  const auto take = [&] {
    cp_async_wait_group<kStages - 2>();
    __syncthreads();
    fetch(stage == 0 ? kStages - 1 : stage - 1);
    const std::uint32_t taken = stages + stage * kTile.stage_bytes();
    stage = stage + 1 == kStages ? 0 : stage + 1;
    return taken;
  };
  const auto multiply = [&](Scores& product, const BiasFactors& factors) {
    product.clear();
#pragma unroll 1
    for (int chunk = 0; chunk < factors.chunks; ++chunk) {
      const std::uint32_t rows = take();
      multiply_rows<T, kChunk>(product, rows + warp_row * kPitch,
                               rows + (kRows + warp_col) * kPitch);
    }
  };
  const auto block_of = [&](const HeadScores<T>& head_scores, const ScoreTile& tile) {
    return ScoreBlock<T, true>{p,
                               head_scores,
                               tile.batch,
                               tile.head,
                               tile.query_tile * kRows + warp_row + lane.row(0),
                               tile.key_tile * kCols + warp_col + lane.col(),
                               queries,
                               keys};
  };

#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(i);
  const KeptBias<kTile.warp_rows, kTile.warp_cols, kThreads> bias{
      reinterpret_cast<float2*>(shared + kStages * kTile.stage_bytes()) + threadIdx.x};
  Scores sums;
  sums.clear();
  block_of(HeadScores<T>(p, s, 0, 0), terms.first).add_map(sums, a.bias);
  bias.keep(sums);
  sums.clear();

  for (int term = 0; term < terms.count; ++term) {
    Scores probability;  // q k^T at first
    multiply(probability, a.factors[0]);
    const ScoreTile tile = terms.first + tiles[term % 4];
    const int first_query = tile.query_tile * kRows + warp_row;
    const int first_key = tile.key_tile * kCols + warp_col;
    const HeadScores<T> head_scores(p, s, tile.batch, tile.head);
    block_of(head_scores, tile).finish(probability, [](int, int, float) {});
    bias.add_to(probability);
    hide_unseen(Band::of_queries(p, s), queries, first_query, first_key, probability);
    const RowStatistics* const statistics = query_statistics[term % 2] + warp_row + lane.row(0);
    probability.for_each(
        [&](float& x, int slot, int) { x = Exponent<T>::power(x - statistics[slot * 8].origin); });
    const Kept kept{kept_words + lane.warp * Kept::kBytes / 2};
    if (p.drop_below != 0) {
      kept.draw(Dropout<float>(p), p.row(tile.batch, tile.head) + first_query, first_key);
    }

    Scores weight;  // f dout v^T
    multiply(weight, a.factors[1]);
    if (p.drop_below != 0) {
      const float grown = Dropout<float>(p).kept();
      weight.for_each([&](float& x, int slot, int col) { x = kept(slot, col) ? x * grown : 0; });
    }
    sums.for_each([&](float& x, int slot, int col) {
      x = fmaf(probability(slot, col), weight(slot, col) - statistics[slot * 8].delta, x);
    });
  }

  cp_async_wait_group<0>();
  __syncthreads();  // stages become memory for sums
  const ScoreTile own = a.plan.tile(blockIdx.x);
  const int first_query = own.query_tile * kRows;
  const int first_key = own.key_tile * kCols;
  float* const to = a.sums + a.plan.share(blockIdx.x) * p.dbias_count +
                    p.dbias.offset(own.batch, own.head, first_query, first_key);
  store_bias_gradient<kTile>(p.dbias, to, queries - first_query, keys - first_key, warp_row,
                             warp_col, sums, reinterpret_cast<float*>(shared));
}

inline constexpr int kBiasSumThreads = 256;

// Adds up shares, which lie one after another, in their order.
__global__ void __launch_bounds__(kBiasSumThreads)
    bias_sum_kernel(const float* sums, std::int64_t count, int shares, float* dbias) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBiasSumThreads + threadIdx.x;
  if (i >= count) return;
  float sum = sums[i];
  for (int share = 1; share < shares; ++share) sum += sums[share * count + i];
  dbias[i] = sum;
}

}  // namespace transformer_kernels::cuda
