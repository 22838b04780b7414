// SPDX-License-Identifier: MIT
// Segments and places as device code reads them. Nothing has checked indices that lie on the
// device: an offset is clamped here, and an index outside of its tensor becomes -1.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/launch.cuh"
#include "graph/kernels.h"

namespace transformer_kernels::cuda {

inline bool may_overlap_launches(const Context& context) {
  return device_limits(context.device.index).architecture >= 90;
}

__device__ __forceinline__ std::int64_t held_to(std::int64_t value, std::int64_t low,
                                                std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// This thread's 2^bits neighbours in its warp, as a mask.
__device__ __forceinline__ unsigned lanes_of_team(int bits) {
  const unsigned first = threadIdx.x % kWarp >> bits << bits;
  return (kAllLanes >> (kWarp - (1 << bits))) << first;
}

struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  Span() = default;
  __device__ __forceinline__ Span(const Segments& s, std::int64_t segment) {
    begin = held_to(s.offsets[segment], 0, s.edges);
    end = held_to(s.offsets[segment + 1], begin, s.edges);
  }
  __device__ __forceinline__ std::int64_t count() const { return end - begin; }
};

// The number of the edge in a place, and the row across it; -1 where there is none.
__device__ __forceinline__ std::int64_t number_at(const Segments& s, std::int64_t place) {
  if (!s.order.present) return place;
  const std::int64_t number = s.order[place];
  return static_cast<std::uint64_t>(number) < static_cast<std::uint64_t>(s.edges) ? number : -1;
}
__device__ __forceinline__ std::int64_t across_at(const Segments& s, std::int64_t place,
                                                  std::int64_t number) {
  const std::int64_t row = s.indices.present ? s.indices[place] : number;
  return static_cast<std::uint64_t>(row) < static_cast<std::uint64_t>(s.across_rows) ? row : -1;
}

}  // namespace transformer_kernels::cuda
