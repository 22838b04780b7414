// SPDX-License-Identifier: MIT
// The gradient of a bias on tensor cores. With p = exp(score - lse - lse_rest), f the factor of
// dropout and delta of a row, see sm80/backward.cuh, the gradient of a score is
//
//   dz = p (f (dout v^T) - delta)
//
// and that of a bias the sum of dz over all scores that it is added to. A CTA keeps its tile of
// sums in registers and recomputes both products of each term; no two CTAs add to one element. A
// row of operands comes in slabs of 128 bytes, those of q and k and then those of dout and v,
// through a ring of stages that continues across terms. A broadcast bias is the same for all terms
// of a CTA: its tile waits in shared memory.
#pragma once

#include "attention/bias_gradient/plan.h"
#include "attention/common/row_gradients.cuh"
#include "attention/sm80/scores.cuh"
#include "attention/sm80/tile.cuh"
#include "core/cuda/sm80/product.cuh"

namespace transformer_kernels::cuda {

// Rows of queries and of keys that are multiplied with each other.
struct BiasFactors {
  HeadRows rows[2];
  int dim;
  int slabs;
};

struct BiasGradient {
  AttentionBackwardProblem problem;  // without the bias
  ScoreMap bias;
  BiasGradientPlan plan;
  BiasFactors factors[2];  // q and k, dout and v
  int group;               // heads of q that share one of k
  const RowStatistics<float>* statistics;
  float* sums;  // dbias, or as many numbers for each split
};

template <class T>
inline constexpr int kBiasSlab = kBiasSlabBytes / static_cast<int>(sizeof(T));

// Float32 takes twice the registers.
template <class T>
inline constexpr int kBiasCtas = sizeof(T) == 4 ? 2 : 3;

// A tile of scores, and where its operands begin: those of each product, of queries and of keys.
struct BiasTerm {
  ScoreTile at;    // among the terms
  ScoreTile tile;  // in the problem
  char* rows[2][2];
};

// A warp's quarter of a tile.
using BiasFragment = Fragment<kBiasWarpTile, kBiasWarpTile>;

// The lane's numbers of the bias, in the order of a fragment.
struct KeptBias {
  float2* own;  // a pair of neighbours every kBiasThreads

  template <class Body>
  __device__ __forceinline__ void for_each_pair(BiasFragment& values, Body&& body) const {
    int index = 0;
#pragma unroll
    for (int slot = 0; slot < kBiasWarpTile / 8; ++slot) {
#pragma unroll
      for (int col = 0; col < kBiasWarpTile; col += 8) {
        body(own[index++ * kBiasThreads], values(slot, col), values(slot, col + 1));
      }
    }
  }
  __device__ __forceinline__ void keep(BiasFragment& bias) const {
    for_each_pair(bias, [](float2& kept, float x, float y) { kept = make_float2(x, y); });
  }
  __device__ __forceinline__ void add_to(BiasFragment& scores) const {
    for_each_pair(scores, [](const float2& kept, float& x, float& y) {
      x += kept.x;
      y += kept.y;
    });
  }
};

// Takes from a warp's scores, from `first_query` and `first_key` on, those out of sight.
__device__ __forceinline__ void hide_unseen(const Band& band, int queries, int first_query,
                                            int first_key, BiasFragment& scores) {
  const int last_query = first_query + kBiasWarpTile - 1;
  if (last_query < queries && first_key >= band.begin(last_query) &&
      first_key + kBiasWarpTile <= band.end(first_query)) {
    return;
  }
  const Lane lane;
#pragma unroll
  for (int slot = 0; slot < kBiasWarpTile / 8; ++slot) {
    const int query = first_query + lane.row(slot);
    const int begin = band.begin(query) - first_key - lane.col();
    const int end = query < queries ? band.end(query) - first_key - lane.col() : 0;
#pragma unroll
    for (int i = 0; i < kBiasWarpTile / 4; ++i) {
      const int col = i / 2 * 8 + i % 2;
      if (col < begin || col >= end) scores(slot, col) = -INFINITY;
    }
  }
}

// Writes the lane's sums, the first of which is that of `row` and `col`, to a tile at `to`.
__device__ __forceinline__ void store_sums(float* to, std::int64_t row_stride,
                                           const BiasExtent& extent, int row, int col,
                                           BiasFragment& sums) {
  const bool in_pairs = row_stride % 2 == 0 && extent.cols % 2 == 0 &&
                        reinterpret_cast<std::uintptr_t>(to) % sizeof(float2) == 0;
#pragma unroll
  for (int slot = 0; slot < kBiasWarpTile / 8; ++slot) {
    if (row + slot * 8 >= extent.rows) break;
    float* const at = to + (row + slot * 8) * row_stride + col;
#pragma unroll
    for (int c = 0; c < kBiasWarpTile; c += 8) {
      const float2 pair = make_float2(sums(slot, c), sums(slot, c + 1));
      if (in_pairs) {
        if (col + c < extent.cols) *reinterpret_cast<float2*>(at + c) = pair;
      } else {
        if (col + c < extent.cols) at[c] = pair.x;
        if (col + c + 1 < extent.cols) at[c + 1] = pair.y;
      }
    }
  }
}

// Writes the lane's sums where the bias is broadcast along rows or columns, which are added up in
// `memory` first; it has room for the tile.
__device__ __forceinline__ void store_reduced_sums(const ScoreMap& map, float* to,
                                                   const BiasExtent& extent, int own_row,
                                                   int own_col, BiasFragment& sums, float* memory) {
  sums.for_each([&](float& x, int slot, int col) {
    memory[(own_row + slot * 8) * kBiasTile + own_col + col] = x;
  });
  __syncthreads();
  const int thread = static_cast<int>(threadIdx.x);
  if (map.col_stride == 0) {
    for (int row = thread; row < kBiasTile; row += kBiasThreads) {
      float* const first = memory + row * kBiasTile;
      for (int col = 1; col < kBiasTile; ++col) *first += first[col];
      if (map.row_stride != 0 && row < extent.rows) to[row * map.row_stride] = *first;
    }
    __syncthreads();
  }
  if (map.row_stride != 0) return;
  for (int col = thread; col < extent.cols; col += kBiasThreads) {
    float sum = 0;
    for (int row = 0; row < kBiasTile; ++row) sum += memory[row * kBiasTile + col];
    to[col] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kBiasThreads, kBiasCtas<T>)
    bias_gradient_kernel(const __grid_constant__ BiasGradient a) {
  constexpr int kSlab = kBiasSlab<T>;
  constexpr int kPitch = kBiasSlabBytes;
  constexpr int kWarpsAcross = kBiasTile / kBiasWarpTile;
  constexpr int kKeysOffset = kBiasTile * kPitch;
  using Kept = KeptScores<kBiasWarpTile, kBiasWarpTile, true>;

  // Stages, of rows of queries and of keys each, then the tile of the bias.
  extern __shared__ __align__(128) unsigned char shared[];
  // Registers are scarce: values that the loop seldom needs wait here.
  __shared__ ScoreTile own;
  __shared__ BiasTerms terms;
  __shared__ BiasTerm ring[4];  // of the last terms whose loads have begun, and the one behind them
  __shared__ RowStatistics<float> query_statistics[2][kBiasTile];  // of even and odd terms
  __shared__ std::uint16_t kept_words[kBiasThreads / kWarp * Kept::kBytes / 2];

  const AttentionBackwardProblem& p = a.problem;
  const Sequence s{0, p.queries, 0, p.keys};
  const int queries = static_cast<int>(p.queries);
  const int keys = static_cast<int>(p.keys);
  const Lane lane;
  const int warp_row = lane.warp / kWarpsAcross * kBiasWarpTile;
  const int warp_col = lane.warp % kWarpsAcross * kBiasWarpTile;
  // A thread for each operand notes where it begins.
  constexpr int kNoting = 4;
  const auto note = [&](BiasTerm& term, const ScoreTile& at) {
    const int product = static_cast<int>(threadIdx.x) / 2;
    const int side = static_cast<int>(threadIdx.x) % 2;
    const ScoreTile tile = terms.first + at;
    const GlobalRows<T> rows =
        rows_of_head<T>(a.factors[product].rows[side], tile.batch,
                        (side == 0 ? tile.query_tile : tile.key_tile) * kBiasTile,
                        side == 0 ? tile.head : tile.head / a.group, 0);
    term.rows[product][side] = rows.data;
    if (threadIdx.x == 0) {
      term.at = at;
      term.tile = tile;
    }
  };
  if (threadIdx.x == 0) {
    own = a.plan.tile(blockIdx.x);
    terms = a.plan.terms(p, blockIdx.x);
  }
  __syncthreads();
  if (threadIdx.x < kNoting && terms.count > 0) note(ring[0], terms.grid[terms.begin]);
  __syncthreads();

  const std::uint32_t stages = shared_address(shared);
  int next_term = 0;
  int next_slab = 0;
  const auto fetch = [&](int stage) {
    if (next_term < terms.count) {
      const int product = next_slab < a.factors[0].slabs ? 0 : 1;
      const BiasFactors& factors = a.factors[product];
      const int slab = product == 0 ? next_slab : next_slab - a.factors[0].slabs;
      const BiasTerm& term = ring[next_term % 4];
      const auto copy = [&](int side, int count) {
        GlobalRows<T> from;
        from.data = term.rows[product][side] + slab * kBiasSlabBytes;
        from.stride = factors.rows[side].row_stride * static_cast<int>(sizeof(T));
        from.dim = factors.dim - slab * kSlab;
        const std::uint32_t target = stages + stage * kBiasStageBytes + side * kKeysOffset;
        copy_rows<kSlab, kBiasTile, kBiasThreads>(target, from, 0, count);
      };
      const int first_query = term.tile.query_tile * kBiasTile;
      copy(0, queries - first_query);
      copy(1, keys - term.tile.key_tile * kBiasTile);
      if (next_slab == 0) {
        const int i = static_cast<int>(threadIdx.x);
        if (i < kBiasTile) {
          const bool valid = first_query + i < queries;
          const std::int64_t row = p.row(term.tile.batch, term.tile.head) + first_query + i;
          cp_async<8>(shared_address(&query_statistics[next_term % 2][i]),
                      a.statistics + (valid ? row : 0), valid);
        }
        if (i < kNoting) note(ring[(next_term + 1) % 4], terms.grid.after(term.at));
      }
      if (++next_slab == a.factors[0].slabs + a.factors[1].slabs) {
        next_slab = 0;
        ++next_term;
      }
    }
    cp_async_commit_group();
  };
  int stage = 0;
  // The next slab of both operands; the stage of the one before it is free for another.
  const auto take = [&] {
    cp_async_wait_group<kBiasStages - 2>();
    __syncthreads();
    fetch(stage == 0 ? kBiasStages - 1 : stage - 1);
    const std::uint32_t taken = stages + stage * kBiasStageBytes;
    stage = stage + 1 == kBiasStages ? 0 : stage + 1;
    return taken;
  };
  const auto multiply = [&](BiasFragment& product, const BiasFactors& factors) {
    product.clear();
#pragma unroll 1
    for (int slab = 0; slab < factors.slabs; ++slab) {
      const std::uint32_t rows = take();
      multiply_rows<T, kSlab>(product, rows + warp_row * kPitch,
                              rows + kKeysOffset + warp_col * kPitch);
    }
  };
  const auto block_of = [&](const HeadScores<T>& head_scores, const ScoreTile& tile) {
    return ScoreBlock<T, true>{p,
                               head_scores,
                               tile.batch,
                               tile.head,
                               tile.query_tile * kBiasTile + warp_row + lane.row(0),
                               tile.key_tile * kBiasTile + warp_col + lane.col(),
                               queries,
                               keys};
  };

#pragma unroll
  for (int i = 0; i < kBiasStages - 1; ++i) fetch(i);
  const KeptBias bias{reinterpret_cast<float2*>(shared + kBiasStages * kBiasStageBytes) +
                      threadIdx.x};
  BiasFragment sums;
  sums.clear();
  block_of(HeadScores<T>(p, s, 0, 0), own).add_map(sums, a.bias);
  bias.keep(sums);
  sums.clear();

  for (int index = 0; index < terms.count; ++index) {
    BiasFragment probability;  // q k^T at first
    multiply(probability, a.factors[0]);
    const ScoreTile tile = ring[index % 4].tile;
    const int first_query = tile.query_tile * kBiasTile + warp_row;
    const int first_key = tile.key_tile * kBiasTile + warp_col;
    const HeadScores<T> head_scores(p, s, tile.batch, tile.head);
    block_of(head_scores, tile).finish(probability, [](int, int, float) {});
    bias.add_to(probability);
    hide_unseen(band_of_queries(p, s), queries, first_query, first_key, probability);
    const RowStatistics<float>* const statistics =
        query_statistics[index % 2] + warp_row + lane.row(0);
    if (has_far_row<kBiasWarpTile>(query_statistics[index % 2] + warp_row)) {
      const std::int64_t row = p.row(tile.batch, tile.head) + first_query;
      probability.for_each([&](float& x, int slot, int) {
        x = FarRow<T>(p, row + lane.row(slot), statistics[slot * 8].origin).power(x);
      });
    } else {
      probability.for_each([&](float& x, int slot, int) {
        x = Exponent<T>::power(fmaf(x, Exponent<T>::kPerNatural, -statistics[slot * 8].origin));
      });
    }
    const Kept kept{kept_words + lane.warp * Kept::kBytes / 2};
    if (p.drop_below != 0) {
      kept.draw(Dropout<float>(p), p.row(tile.batch, tile.head) + first_query, first_key);
    }

    BiasFragment weight;  // f dout v^T
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
  const BiasExtent extent = a.plan.extent(p, own);
  const ScoreMap& map = p.dbias;
  float* const to =
      a.sums + a.plan.split(blockIdx.x) * p.dbias_count +
      map.offset(own.batch, own.head, own.query_tile * kBiasTile, own.key_tile * kBiasTile);
  const int row = warp_row + lane.row(0);
  const int col = warp_col + lane.col();
  if (map.row_stride != 0 && map.col_stride != 0) {
    store_sums(to, map.row_stride, extent, row, col, sums);
  } else {
    store_reduced_sums(map, to, extent, row, col, sums, reinterpret_cast<float*>(shared));
  }
}

inline constexpr int kBiasSumThreads = 256;

// Adds up the sums of all splits, which lie one after another, in their order.
__global__ void __launch_bounds__(kBiasSumThreads)
    bias_sum_kernel(const float* sums, std::int64_t count, int splits, float* dbias) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kBiasSumThreads + threadIdx.x;
  if (i >= count) return;
  float sum = sums[i];
  for (int split = 1; split < splits; ++split) sum += sums[split * count + i];
  dbias[i] = sum;
}

}  // namespace transformer_kernels::cuda
