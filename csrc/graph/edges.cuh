// SPDX-License-Identifier: MIT
// What each edge gets of its segment's row: a product by heads with the row across it, or the row
// itself. Neighbouring threads take the places of a segment one after the other; those of a long
// segment in short runs, so that it is no single chain.
#pragma once

#include "core/cuda/reduce.cuh"
#include "graph/graph_place.cuh"
#include "pointwise/pointwise_pack.cuh"

namespace transformer_kernels::cuda {

// The threads of a row are those of one head's packs in products, of a chunk of all in a spread.
struct EdgeLaunch {
  EdgeProblem problem;
  RowLanes row;
  std::int64_t units;  // segments, or runs
};

// Places of one segment, or a run of places that may be of several; kEdges at a time.
template <int kEdges, bool kOfSegment>
struct Run {
  const EdgeProblem& p;
  std::int64_t first;
  std::int64_t end;
  std::int64_t own;             // segment of the last place
  std::int64_t end_of_own = 0;  // of runs
  std::int64_t number[kEdges];  // -1 where there is no edge
  std::int64_t segment[kEdges];

  __device__ __forceinline__ Run(const EdgeProblem& problem, std::int64_t unit) : p(problem) {
    const Segments& s = p.segments;
    if constexpr (kOfSegment) {
      const Span span(s, unit);
      own = unit;
      first = span.begin;
      end = span.count() > kLongSegment ? first : span.end;
    } else {
      first = unit * kRunEdges;
      end = min(first + kRunEdges, s.edges);
      own = max(segment_at(s, first), std::int64_t{0});
      end_of_own = s.offsets[own + 1];
    }
  }

  __device__ __forceinline__ void find(std::int64_t place) {
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      number[k] = place + k < end ? number_at(p.segments, place + k) : -1;
      segment[k] = own;
    }
    if constexpr (!kOfSegment) find_segments(place);
  }

  // Edges of segments that are not long are no part of a run.
  __device__ __forceinline__ void find_segments(std::int64_t place) {
    const Segments& s = p.segments;
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      while (place + k >= end_of_own && own + 1 < s.count) end_of_own = s.offsets[++own + 1];
      segment[k] = own;
      if (Span(s, own).count() <= kLongSegment) number[k] = -1;
    }
  }

  // Of a mean.
  template <class A>
  __device__ __forceinline__ A scale(int k) const {
    const GraphIndices& offsets = p.segments.offsets;
    if (!p.mean) return 1;
    return A{1} / static_cast<A>(offsets[segment[k] + 1] - offsets[segment[k]]);
  }

  __device__ __forceinline__ bool is_chosen(int k, std::int64_t col) const {
    return !p.chosen.present || p.chosen[segment[k] * p.cols + col] == number[k];
  }
};

// Products: threads have a unit of places and a head.
template <class T, int kSize, bool kOfSegment>
__global__ void __launch_bounds__(kGraphThreads, kGraphCtas)
    edge_products_kernel(const __grid_constant__ EdgeLaunch s) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  constexpr int kEdges = 4;
  follow_previous_kernel();
  const EdgeProblem& p = s.problem;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t unit = thread >> s.row.bits;
  if (unit >= s.units * p.heads) return;  // whole rows of threads
  const int lanes = s.row.count();
  const int lane = static_cast<int>(thread & (lanes - 1));
  const std::int64_t index = p.heads == 1 ? unit : unit / p.heads;
  const std::int64_t head = unit - index * p.heads;
  const std::int64_t head_cols = p.cols / p.heads;
  const std::int64_t first_col = head * head_cols;
  Run<kEdges, kOfSegment> run(p, index);
  for (std::int64_t place = run.first; place < run.end; place += kEdges) {
    run.find(place);
    std::int64_t row[kEdges];
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      row[k] = run.number[k] >= 0 ? across_at(p.segments, place + k, run.number[k]) : -1;
    }
    A sum[kEdges] = {};
    for (std::int64_t in_head = lane * kSize; in_head < head_cols; in_head += lanes * kSize) {
      const std::int64_t col = first_col + in_head;
      typename P::Raw left[kEdges], right[kEdges];
#pragma unroll
      for (int k = 0; k < kEdges; ++k) {
        left[k] = right[k] = {};
        if (row[k] < 0) continue;
        left[k] = load_pack<T, kSize>(row_of<const T>(p.a, run.segment[k]) + col, kSize);
        right[k] = load_pack<T, kSize>(row_of<const T>(p.b, row[k]) + col, kSize);
      }
#pragma unroll
      for (int k = 0; k < kEdges; ++k) {
        A x[kSize], y[kSize];
        P::unpack(left[k], x);
        P::unpack(right[k], y);
#pragma unroll
        for (int e = 0; e < kSize; ++e) {
          const bool takes_part = row[k] >= 0 && run.is_chosen(k, col + e);
          sum[k] = takes_part ? sum[k] + x[e] * y[e] : sum[k];
        }
      }
    }
    const unsigned together = lanes_of_team(s.row.bits);
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      for (int step = lanes / 2; step > 0; step /= 2) {
        sum[k] += __shfl_xor_sync(together, sum[k], step);
      }
      if (lane == k % lanes && run.number[k] >= 0) {
        row_of<T>(p.y, run.number[k])[head] = narrow<T>(sum[k] * run.template scale<A>(k));
      }
    }
  }
}

// Spread: threads have a unit of places and a chunk of columns.
template <class T, int kSize, bool kOfSegment>
__global__ void __launch_bounds__(kGraphThreads, kGraphCtas)
    edge_spread_kernel(const __grid_constant__ EdgeLaunch s) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  constexpr int kEdges = 4;
  follow_previous_kernel();
  const EdgeProblem& p = s.problem;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t unit = thread >> s.row.bits;
  if (unit >= s.units * s.row.chunks) return;
  const std::int64_t index = s.row.chunks == 1 ? unit : unit / s.row.chunks;
  const std::int64_t chunk = unit - index * s.row.chunks;
  const std::int64_t col = ((chunk << s.row.bits) + (thread & (s.row.count() - 1))) * kSize;
  if (col >= p.cols) return;
  const std::int64_t head = col / (p.cols / p.heads);
  Run<kEdges, kOfSegment> run(p, index);
  for (std::int64_t place = run.first; place < run.end; place += kEdges) {
    run.find(place);
    A factor[kEdges];
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      factor[k] = run.template scale<A>(k);
      if (p.weight == nullptr || run.number[k] < 0) continue;
      factor[k] *= widen(static_cast<const T*>(p.weight)[run.number[k] * p.heads + head]);
    }
    typename P::Raw raw[kEdges];
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      raw[k] = {};
      if (run.number[k] < 0) continue;
      raw[k] = load_pack<T, kSize>(row_of<const T>(p.a, run.segment[k]) + col, kSize);
    }
#pragma unroll
    for (int k = 0; k < kEdges; ++k) {
      if (run.number[k] < 0) continue;
      A value[kSize];
      P::unpack(raw[k], value);
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        value[e] = run.is_chosen(k, col + e) ? value[e] * factor[k] : A{0};
      }
      P::store(row_of<T>(p.y, run.number[k]) + col, P::pack(value));
    }
  }
}

}  // namespace transformer_kernels::cuda
