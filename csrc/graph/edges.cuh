// SPDX-License-Identifier: MIT
// Per-edge results from the row of the edge's segment: its product, head by head, with the row
// across the edge, or a copy of it. Edges are taken in the order of their places, not by segment,
// so that threads have as much to do in a segment of one edge as in one of a million. Neighbouring
// threads share a row, a pack each.
#pragma once

#include "graph/edge_run.cuh"

namespace transformer_kernels::cuda {

// Whether an element of a segment's row has chosen this edge, or any. Packs are for none that have.
template <int kSize>
__device__ __forceinline__ bool is_chosen(const EdgeProblem& p, std::int64_t element,
                                          std::int64_t number) {
  return kSize > 1 || !p.chosen.present || p.chosen[element] == number;
}

// Neighbouring threads own kProducts neighbouring items, whose edges are mostly of one segment, and
// the same of each round of the CTA. Where there is no row across, row 0 is read in its place and
// the result discarded, so that all loads are issued together.
template <class T, int kSize>
__global__ void __launch_bounds__(kRunThreads, product_ctas(kSize, sizeof(T)))
    edge_products_kernel(const __grid_constant__ EdgeLaunch s) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  __shared__ EdgeRun<A> run;
  follow_previous_kernel();
  const EdgeProblem& p = s.problem;
  const std::int64_t first = std::int64_t{blockIdx.x} * s.items;
  const std::int64_t end = min(first + s.items, p.segments.edges * s.heads);
  run.look_up(s, first, end);
  const int count = static_cast<int>(end - first);
  const int lanes = s.row.count();
  const int lane = threadIdx.x & (lanes - 1);
  const int round = kProducts * kRunThreads >> s.row.bits;
  int item = (threadIdx.x >> s.row.bits) * kProducts;
  for (int of_all = 0; of_all < count; of_all += round, item += round) {
    std::int64_t own[kProducts], across[kProducts];
    A sum[kProducts] = {};
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      const int at = item + k < count ? item + k : 0;
      own[k] = run.own[at];
      across[k] = max(run.across[at], std::int64_t{0});
    }
    for (std::int64_t col = lane * kSize; col < s.item_cols; col += lanes * kSize) {
      const T* const a = static_cast<const T*>(p.a.data) + col;
      const T* const b = static_cast<const T*>(p.b.data) + col;
      typename P::Raw left[kProducts], right[kProducts];
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        right[k] = load_pack<T, kSize>(b + across[k], kSize);
        left[k] = load_pack<T, kSize>(a + own[k], kSize);
      }
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        const int at = item + k < count ? item + k : 0;
        if (!is_chosen<kSize>(p, run.chosen[at] + col, run.number[at])) continue;
        A x[kSize], y[kSize];
        P::unpack(left[k], x);
        P::unpack(right[k], y);
#pragma unroll
        for (int e = 0; e < kSize; ++e) sum[k] += x[e] * y[e];
      }
    }
    for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
      for (A& v : sum) v += __shfl_xor_sync(kAllLanes, v, step);
    }
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      if (lane != k % lanes || item + k >= count || run.result[item + k] == kNowhere) continue;
      const A value = run.across[item + k] == kNowhere ? A{0} : sum[k] * run.scale[item + k];
      static_cast<T*>(p.y.data)[run.result[item + k]] = narrow<T>(value);
    }
  }
}

// Neighbouring threads own a row of the result, and kSpread of them at a time, so that neighbours
// write neighbouring rows. The segment's row comes mostly from the caches, because edges of a
// segment are neighbours.
template <class T, int kSize>
__global__ void __launch_bounds__(kRunThreads, kSpreadCtas)
    edge_spread_kernel(const __grid_constant__ EdgeLaunch s) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  __shared__ EdgeRun<A> run;
  follow_previous_kernel();
  const EdgeProblem& p = s.problem;
  const std::int64_t first = std::int64_t{blockIdx.x} * s.items;
  const std::int64_t end = min(first + s.items, p.segments.edges);
  run.look_up(s, first, end);
  const int count = static_cast<int>(end - first);
  const int teams = kRunThreads >> s.row.bits;
  const std::int64_t step = std::int64_t{kSize} << s.row.bits;
  for (std::int64_t col = (threadIdx.x & (s.row.count() - 1)) * kSize; col < p.cols; col += step) {
    const std::int64_t head = p.heads == 1 ? 0 : col / (p.cols / p.heads);
    for (int item = threadIdx.x >> s.row.bits; item < count; item += teams * kSpread) {
      typename P::Raw raw[kSpread];
      A factor[kSpread];
#pragma unroll
      for (int k = 0; k < kSpread; ++k) {
        const int at = item + k * teams < count ? item + k * teams : item;
        raw[k] = load_pack<T, kSize>(static_cast<const T*>(p.a.data) + run.own[at] + col, kSize);
        factor[k] = run.scale[at];
        if (p.weight == nullptr || run.result[at] == kNowhere) continue;
        factor[k] *= widen(static_cast<const T*>(p.weight)[run.number[at] * p.heads + head]);
      }
#pragma unroll
      for (int k = 0; k < kSpread; ++k) {
        const int at = item + k * teams;
        if (at >= count || run.result[at] == kNowhere) continue;
        const bool chosen = is_chosen<kSize>(p, run.chosen[at] + col, run.number[at]);
        A value[kSize];
        P::unpack(raw[k], value);
#pragma unroll
        for (A& v : value) v = chosen ? v * factor[k] : A{0};
        P::store(static_cast<T*>(p.y.data) + run.result[at] + col, P::pack(value));
      }
    }
  }
}

}  // namespace transformer_kernels::cuda
