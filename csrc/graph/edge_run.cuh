// SPDX-License-Identifier: MIT
// Runs of neighbouring edges, of any segments; a CTA owns one. Each edge's segment and indices are
// looked up once, and kept in shared memory for the CTA's threads.
#pragma once

#include "core/cuda/reduce.cuh"
#include "graph/place.cuh"
#include "pointwise/pack.cuh"

namespace transformer_kernels::cuda {

// The last segment that begins at `place` or before, 0 where there is none, found by all lanes of a
// warp, which cut the remaining range into 32 parts at a time. A step waits for memory once, so
// that a million segments cost four waits, where one thread alone would wait twenty times.
__device__ __forceinline__ std::int64_t segment_by_warp(const Segments& s, std::int64_t place) {
  const int lane = threadIdx.x % kWarp;
  std::int64_t low = 0;  // the first that begins later is in [low, high]
  std::int64_t high = s.count;
  while (low < high) {
    const std::int64_t part = (high - low + kWarp - 1) / kWarp;
    const std::int64_t last_of_part = low + (lane + 1) * part - 1;
    const bool begins = last_of_part < high && s.offsets[last_of_part] <= place;
    low += __popc(__ballot_sync(kAllLanes, begins)) * part;
    high = min(high, low + part - 1);
  }
  return max(low - 1, std::int64_t{0});
}

// The segment of a place, searched among segments [low, high] by one thread.
__device__ __forceinline__ std::int64_t segment_between(const Segments& s, std::int64_t place,
                                                        std::int64_t low, std::int64_t high) {
  while (low < high) {
    const std::int64_t middle = high - (high - low) / 2;
    if (s.offsets[middle] <= place) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

struct EdgeLaunch {
  EdgeProblem problem;
  RowLanes row;            // the threads of an item
  int items;               // of a run
  std::int64_t heads;      // items of an edge
  std::int64_t item_cols;  // of the rows of either end
};

// An item is an edge, or a head of it. What belongs to it lies so many elements behind the start of
// its tensor, or nowhere.
inline constexpr std::int64_t kNowhere = -1;

template <class A>
struct EdgeRun {
  std::int64_t outer[2];           // the segments of the first item and of the last
  std::int64_t own[kRunItems];     // columns of the segment's row
  std::int64_t across[kRunItems];  // of the row across
  std::int64_t result[kRunItems];
  std::int64_t number[kRunItems];  // of the edge
  std::int64_t chosen[kRunItems];  // by the segment's columns
  A scale[kRunItems];              // of a mean, else 1

  // Looks up items [first, end), by all threads of the CTA, which may read them from then on.
  __device__ __forceinline__ void look_up(const EdgeLaunch& s, std::int64_t first,
                                          std::int64_t end) {
    const Segments& segments = s.problem.segments;
    const int warp = threadIdx.x / kWarp;
    if (warp < 2) {
      const std::int64_t item = warp == 0 ? first : end - 1;
      const std::int64_t found = segment_by_warp(segments, place_of(s, item));
      if (threadIdx.x % kWarp == 0) outer[warp] = found;
    }
    for_each_item(s, first, end, [&](int i, std::int64_t place, std::int64_t head) {
      look_up_edge(s, i, place, head);
    });
    __syncthreads();
    for_each_item(s, first, end, [&](int i, std::int64_t place, std::int64_t head) {
      look_up_segment(s, i, segment_between(segments, place, outer[0], outer[1]), head);
    });
    __syncthreads();
  }

 private:
  static __device__ __forceinline__ std::int64_t place_of(const EdgeLaunch& s, std::int64_t item) {
    return s.heads == 1 ? item : item / s.heads;
  }

  template <class Body>
  static __device__ __forceinline__ void for_each_item(const EdgeLaunch& s, std::int64_t first,
                                                       std::int64_t end, Body&& body) {
#pragma unroll 1
    for (std::int64_t item = first + threadIdx.x; item < end; item += kRunThreads) {
      const std::int64_t place = place_of(s, item);
      body(static_cast<int>(item - first), place, item - place * s.heads);
    }
  }

  __device__ __forceinline__ void look_up_edge(const EdgeLaunch& s, int i, std::int64_t place,
                                               std::int64_t head) {
    const EdgeProblem& p = s.problem;
    const std::int64_t found = number_at(p.segments, place);
    number[i] = found;
    result[i] = found < 0 ? kNowhere : found * p.y.stride + head;
    if (p.spread) return;
    const std::int64_t row = found < 0 ? -1 : across_at(p.segments, place, found);
    across[i] = row < 0 ? kNowhere : row * p.b.stride + head * s.item_cols;
  }

  __device__ __forceinline__ void look_up_segment(const EdgeLaunch& s, int i, std::int64_t segment,
                                                  std::int64_t head) {
    const EdgeProblem& p = s.problem;
    const GraphIndices& offsets = p.segments.offsets;
    own[i] = segment * p.a.stride + head * s.item_cols;
    chosen[i] = segment * p.cols + head * s.item_cols;
    scale[i] = p.mean ? reciprocal(static_cast<A>(offsets[segment + 1] - offsets[segment])) : A{1};
  }
};

}  // namespace transformer_kernels::cuda
