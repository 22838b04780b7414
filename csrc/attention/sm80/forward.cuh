// SPDX-License-Identifier: MIT
// The forward pass on tensor cores after FlashAttention-2 (Dao, arXiv 2307.08691): a CTA owns a
// block of queries of one head, k and v stream past it, and the softmax follows online, in powers
// of 2 with the scale folded in, but for far rows.
#pragma once

#include "attention/common/far_rows.h"
#include "attention/sm80/scores.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/sm80/product.cuh"

namespace transformer_kernels::cuda {

// The softmax of a warp's rows, as far as they have seen keys; two row slots a tile of mma.
template <class T, int kRows>
struct OnlineSoftmax {
  using E = Exponent<T>;
  static constexpr int kSlots = kRows / 8;

  float largest[kSlots];  // of the row, before `scale`
  float sum[kSlots];      // of this lane's columns

  __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      largest[slot] = -INFINITY;
      sum[slot] = 0;
    }
  }

  // Scores become powers of score * scale, less the largest so far; `out` follows the latter.
  template <int kCols, int kDim>
  __device__ __forceinline__ void take(Fragment<kRows, kCols>& scores, float scale,
                                       Fragment<kRows, kDim>& out) {
    float top[kSlots], origin[kSlots], decay[kSlots];
    bool far = false;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) top[slot] = largest[slot];
    scores.for_each([&](float x, int slot, int) { top[slot] = fmaxf(top[slot], x); });
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      top[slot] = reduce_lanes<Max, 4>(top[slot]);
      origin[slot] = top[slot] == -INFINITY ? 0 : rounded_product(top[slot], scale);
      far = far || is_far(origin[slot]);
      const float before = rounded_product(largest[slot], scale);
      decay[slot] = E::power((before - origin[slot]) * E::kPerNatural);
      largest[slot] = top[slot];
      sum[slot] *= decay[slot];
    }
    float factor = scale * E::kPerNatural;
    if (__any_sync(kAllLanes, far)) {
      scores.for_each([&](float& x, int slot, int) {
        x = rounded_product(x, scale) - (is_far(origin[slot]) ? origin[slot] : 0);
      });
#pragma unroll
      for (float& of_row : origin) of_row = is_far(of_row) ? 0 : of_row;
      factor = E::kPerNatural;
    }
#pragma unroll
    for (float& of_row : origin) of_row *= E::kPerNatural;
    scores.for_each([&](float& x, int slot, int) {
      x = E::power(fmaf(x, factor, -origin[slot]));
      sum[slot] += x;
    });
    out.for_each([&](float& x, int slot, int) { x *= decay[slot]; });
  }
};

// A row's end: what its sum of products is to be multiplied with, and its log-sum-exp.
struct RowEnd {
  float factor;
  LogSumExp<float> end;
};

// `sink` is minus infinity where there is none.
template <class T>
__device__ __forceinline__ RowEnd finish_row(float largest, float sum, float sink) {
  using E = Exponent<T>;
  const float top = fmaxf(largest, sink);
  if (top == -INFINITY && sum == 0) return {0, {-INFINITY, 0}};  // else there was a NaN
  const float decay = E::power((largest - top) * E::kPerNatural);
  const float total = fmaf(sum, decay, E::power((sink - top) * E::kPerNatural));
  return {decay / total, log_sum_exp(top, E::log(total) * E::kNatural)};
}

// Stores out and lse of a warp's rows. `shared` is the CTA's; a warp writes only its own rows of q
// there, which no other warp reads.
template <class T, int kDim, int kRows>
__device__ __forceinline__ void finish_rows(const AttentionForwardProblem& p, const OwnBlock& at,
                                            OnlineSoftmax<T, kRows>& softmax, float scale,
                                            float grown, Fragment<kRows, kDim>& out,
                                            unsigned char* shared) {
  const Lane lane;
  const Sequence s = p.sequence(at.batch);
  const int queries = static_cast<int>(s.queries);
  const int warp_row = at.first + lane.warp * kRows;
  const float sink = p.sinks.at(0, at.head, -INFINITY);
  float row_factor[kRows / 8];
#pragma unroll
  for (int slot = 0; slot < kRows / 8; ++slot) {
    const RowEnd row = finish_row<T>(rounded_product(softmax.largest[slot], scale),
                                     reduce_lanes<Add, 4>(softmax.sum[slot]), sink);
    row_factor[slot] = row.factor * grown;
    const int query = warp_row + lane.row(slot);
    if (p.lse != nullptr && lane.lane % 4 == 0 && query < queries) {
      const std::int64_t place = p.row(at.batch, at.head) + query;
      static_cast<float*>(p.lse)[place] = row.end.lse;
      if (p.lse_rest != nullptr) static_cast<float*>(p.lse_rest)[place] = row.end.rest;
    }
  }
  out.for_each([&](float& x, int slot, int) { x *= row_factor[slot]; });
  const GlobalRows<T> target = rows_of_head<T>(p.out, p.q_offsets ? 0 : at.batch,
                                               s.q_begin + warp_row, at.head, p.value_dim);
  store_rows<T>(out, shared + lane.warp * kRows * SharedRows<T, kDim>::kPitch, target,
                queries - warp_row);
}

template <class T, class Plan, bool kHasFeatures>
__global__ void __launch_bounds__(Plan::tile.threads(), kForwardCtas<T>)
    tensor_core_forward_kernel(const __grid_constant__ AttentionForwardProblem p) {
  constexpr TensorCoreTile kTile = Plan::tile;
  constexpr int kDim = kTile.dim;
  constexpr int kRows = kTile.rows();
  constexpr int kCols = kTile.cols;
  constexpr int kWarpRows = kTile.warp_rows;
  constexpr int kMatrixBytes = kCols * SharedRows<T, kDim>::kPitch;
  using Kept = KeptScores<kWarpRows, kCols, true>;

  extern __shared__ __align__(128) unsigned char shared[];  // q, then k and v of two stages
  __shared__ std::uint16_t kept_words[kHasFeatures ? kTile.warps * Kept::kBytes / 2 : 1];
  __shared__ OwnBlock block;  // for the end and the features: registers are scarce in between

  const OwnBlock at(query_blocks(p, kRows));
  const Sequence s = p.sequence(at.batch);
  const int queries = static_cast<int>(s.queries);
  const int first_row = at.first;
  if (first_row >= queries) return;
  if (threadIdx.x == 0) block = at;
  const Band band = band_of_queries(p, s);
  const int last_row = min(first_row + kRows, queries) - 1;
  const int first_tile = band.begin(first_row) / kCols;
  const int end_tile = (band.end(last_row) + kCols - 1) / kCols;
  const Lane lane;
  const int own_row = first_row + lane.warp * kWarpRows + lane.row(0);

  const int batch = p.q_offsets ? 0 : at.batch;
  const int kv_head = at.head / static_cast<int>(p.group());
  const GlobalRows<T> k = rows_of_head<T>(p.k, batch, s.k_begin, kv_head, p.dim);
  const GlobalRows<T> v = rows_of_head<T>(p.v, batch, s.k_begin, kv_head, p.value_dim);
  const std::uint32_t own = shared_address(shared);
  const std::uint32_t stages = own + kRows * SharedRows<T, kDim>::kPitch;
  const auto stage = [&](int tile) { return stages + tile % 2 * 2 * kMatrixBytes; };
  const auto fetch = [&](int tile) {
    const int first = tile * kCols;
    copy_rows<kDim, kCols, kTile.threads()>(stage(tile), k, first, band.columns);
    copy_rows<kDim, kCols, kTile.threads()>(stage(tile) + kMatrixBytes, v, first, band.columns);
    cp_async_commit_group();
  };

  const HeadScores<T> head_scores(p, s, at.batch, at.head);
  const float scale = kHasFeatures ? 1.0f : head_scores.scale();
  Fragment<kWarpRows, kDim> out;
  out.clear();
  OnlineSoftmax<T, kWarpRows> softmax;

  copy_rows<kDim, kRows, kTile.threads()>(
      own, rows_of_head<T>(p.q, batch, s.q_begin, at.head, p.dim), first_row, queries);
  cp_async_commit_group();
  if (first_tile < end_tile) fetch(first_tile);
  for (int tile = first_tile; tile < end_tile; ++tile) {
    cp_async_wait_group<0>();
    __syncthreads();  // all have this tile, and are done with the one before
    if (tile + 1 < end_tile) fetch(tile + 1);
    const int first_col = tile * kCols;
    const int own_col = first_col + lane.col();

    Fragment<kWarpRows, kCols> scores;
    scores.clear();
    multiply_rows<T, kDim>(scores, own + lane.warp * kWarpRows * SharedRows<T, kDim>::kPitch,
                           stage(tile));
    if constexpr (kHasFeatures) {
      ScoreBlock<T, true>{p,       head_scores, block.batch, block.head,
                          own_row, own_col,     queries,     band.columns}
          .finish(scores, [](int, int, float) {});
    }
    if (first_col < band.begin(last_row) || first_col + kCols > band.end(first_row)) {
      scores.for_each([&](float& x, int slot, int col) {
        const int query = own_row + slot * 8;
        const int key = own_col + col;
        if (key < band.begin(query) || key >= band.end(query)) x = -INFINITY;
      });
    }
    softmax.take(scores, scale, out);
    if constexpr (kHasFeatures) {
      if (p.drop_below != 0) {
        const Kept kept{kept_words + lane.warp * Kept::kBytes / 2};
        kept.draw(Dropout<float>(p), p.row(block.batch, block.head) + own_row - lane.row(0),
                  first_col);
        scores.for_each([&](float& x, int slot, int col) {
          if (!kept(slot, col)) x = 0;
        });
      }
    }
    multiply_fragment<T>(out, scores, stage(tile) + kMatrixBytes);
  }
  cp_async_wait_group<0>();
  __syncthreads();  // where there was no tile, q may still be on its way
  finish_rows<T>(p, block, softmax, scale, kHasFeatures ? Dropout<float>(p).kept() : 1.0f, out,
                 shared);
}

template <class T, class Plan, bool kHasFeatures>
void launch_tensor_core_forward(const char* op, const Context& context,
                                const AttentionForwardProblem& p) {
  constexpr TensorCoreTile kTile = Plan::tile;
  launch(op, context,
         LaunchShape{.ctas = p.heads * query_blocks(p, kTile.rows()).count(),
                     .threads = kTile.threads(),
                     .shared_bytes = static_cast<std::size_t>(kTile.shared_bytes(sizeof(T), 1, 2))},
         &tensor_core_forward_kernel<T, Plan, kHasFeatures>, p);
}

}  // namespace transformer_kernels::cuda
