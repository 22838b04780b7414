// SPDX-License-Identifier: MIT
// Softmax of segments. A team of threads owns a segment: a part of a warp, or a CTA for a segment
// that is long. Some of them are side by side in its columns, and the others go through its places
// beside them. What a thread meets first stays in its registers; the rest is read again.
#pragma once

#include <limits>

#include "core/cuda/exponent.cuh"
#include "graph/graph_place.cuh"
#include "pointwise/pointwise_pack.cuh"

namespace transformer_kernels::cuda {

struct LongSoftmax {
  unsigned long long* count;
  std::int64_t* segment;
};

struct SoftmaxLaunch {
  SegmentSoftmaxProblem problem;
  SoftmaxLanes lanes;
  SoftmaxLanes long_lanes;  // of which no more than the width counts
  LongSoftmax longs;
};

struct Greater {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a > b ? a : b;
  }
};
struct Sum {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a + b;
  }
};

// A part of a warp.
template <class A>
struct PartOfWarp {
  int lane;   // in the team
  int lanes;  // of it
  int width;
  unsigned members;

  // Of the threads in one column, to all of them.
  template <class Merge>
  __device__ __forceinline__ A reduce(A value, Merge merge) const {
    for (int step = lanes / 2; step >= width; step /= 2) {
      value = merge(value, __shfl_xor_sync(members, value, step));
    }
    return value;
  }
};

// A CTA.
template <class A>
struct WholeCta {
  int lane;
  int lanes;
  int width;
  A* shared;  // [warps][width]

  template <class Merge>
  __device__ __forceinline__ A reduce(A value, Merge merge) const {
    for (int step = kWarp / 2; step >= width; step /= 2) {
      value = merge(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    __syncthreads();
    if (lane % kWarp < width) shared[lane / kWarp * width + lane % kWarp] = value;
    __syncthreads();
    const int col = lane % width;
    value = shared[col];
    for (int warp = 1; warp < lanes / kWarp; ++warp) {
      value = merge(value, shared[warp * width + col]);
    }
    return value;
  }
};

// A few columns of one segment, a pack, in the places of one thread. `kOrdered`: the edges may have
// an order.
template <class T, int kSize, bool kOrdered, class Team>
struct SegmentColumns {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  using Raw = typename P::Raw;
  using Values = A[kSize];
  static constexpr int kKept = softmax_kept(kSize);
  static constexpr A kLowest = -std::numeric_limits<A>::infinity();

  const SegmentSoftmaxProblem& p;
  const Team& team;
  Span span;
  std::int64_t col;
  bool inside;

  __device__ __forceinline__ int step() const { return team.lanes / team.width; }
  __device__ __forceinline__ std::int64_t place(int i) const {
    return span.begin + team.lane / team.width + i * step();
  }

  // The pack in a place, of x and alike; null where there is none.
  template <class E>
  __device__ __forceinline__ E* pack_at(const Rows& rows, std::int64_t place) const {
    if (!inside || place >= span.end) return nullptr;
    const std::int64_t number = kOrdered ? number_at(p.segments, place) : place;
    return number < 0 ? nullptr : row_of<E>(rows, number) + col;
  }
  __device__ __forceinline__ void read(const Rows& rows, std::int64_t place, A otherwise,
                                       Values& values) const {
#pragma unroll
    for (A& v : values) v = otherwise;
    const T* const from = pack_at<const T>(rows, place);
    if (from != nullptr) P::unpack(load_pack<T, kSize>(from, kSize), values);
  }
  __device__ __forceinline__ void write(std::int64_t place, const Values& values) const {
    T* const to = pack_at<T>(p.y, place);
    if (to != nullptr) P::store(to, P::pack(values));
  }

  // Calls body(place) of those that are not kept in registers.
  template <class Body>
  __device__ __forceinline__ void for_each_left(Body&& body) const {
    for (std::int64_t at = place(kKept); at < span.end; at += step()) body(at);
  }

  __device__ __forceinline__ void softmax() const {
    using E = Exponent<T>;
    A z[kKept][kSize];
    A top[kSize], sum[kSize];
#pragma unroll
    for (int i = 0; i < kKept; ++i) read(p.x, place(i), kLowest, z[i]);
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      top[e] = kLowest;
      sum[e] = 0;
#pragma unroll
      for (int i = 0; i < kKept; ++i) top[e] = z[i][e] > top[e] ? z[i][e] : top[e];
    }
    for_each_left([&](std::int64_t at) {
      A v[kSize];
      read(p.x, at, kLowest, v);
#pragma unroll
      for (int e = 0; e < kSize; ++e) top[e] = v[e] > top[e] ? v[e] : top[e];
    });
#pragma unroll
    for (A& v : top) v = team.reduce(v, Greater{});
    const auto raise = [&](A(&v)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] = E::power((v[e] - top[e]) * E::kPerNatural);
    };
    const auto add = [&](const A(&v)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum[e] += v[e];
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (!inside || place(i) >= span.end) continue;
      raise(z[i]);
      add(z[i]);
    }
    for_each_left([&](std::int64_t at) {
      A v[kSize];
      read(p.x, at, kLowest, v);
      raise(v);
      add(v);
    });
#pragma unroll
    for (A& v : sum) v = A{1} / team.reduce(v, Sum{});
    const auto scale_and_write = [&](std::int64_t at, A(&v)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] *= sum[e];
      write(at, v);
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) scale_and_write(place(i), z[i]);
    for_each_left([&](std::int64_t at) {
      A v[kSize];
      read(p.x, at, kLowest, v);
      raise(v);
      scale_and_write(at, v);
    });
  }

  // x is the forward pass's result.
  __device__ __forceinline__ void gradient() const {
    A z[kKept][kSize], g[kKept][kSize];
    A sum[kSize] = {};
    const auto add = [&](const A(&v)[kSize], const A(&w)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum[e] += v[e] * w[e];
    };
    const auto derive_and_write = [&](std::int64_t at, A(&v)[kSize], const A(&w)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] *= w[e] - sum[e];
      write(at, v);
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      read(p.x, place(i), 0, z[i]);
      read(p.dy, place(i), 0, g[i]);
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) add(z[i], g[i]);
    for_each_left([&](std::int64_t at) {
      A v[kSize], w[kSize];
      read(p.x, at, 0, v);
      read(p.dy, at, 0, w);
      add(v, w);
    });
#pragma unroll
    for (A& v : sum) v = team.reduce(v, Sum{});
#pragma unroll
    for (int i = 0; i < kKept; ++i) derive_and_write(place(i), z[i], g[i]);
    for_each_left([&](std::int64_t at) {
      A v[kSize], w[kSize];
      read(p.x, at, 0, v);
      read(p.dy, at, 0, w);
      derive_and_write(at, v, w);
    });
  }
};

template <class T, int kSize, bool kBackward, bool kOrdered, class Team>
__device__ __forceinline__ void run_segment(const SegmentSoftmaxProblem& p, const Team& team,
                                            const Span& span) {
  for (std::int64_t first = 0; first < p.cols; first += team.width * kSize) {
    const std::int64_t col = first + team.lane % team.width * kSize;
    const SegmentColumns<T, kSize, kOrdered, Team> columns{p, team, span, col, col < p.cols};
    if constexpr (kBackward) {
      columns.gradient();
    } else {
      columns.softmax();
    }
  }
}

template <class T>
constexpr int softmax_ctas(int size, bool ordered) {
  if (ordered || size > 1) return kGraphCtas - 1;
  return sizeof(T) == 8 ? kGraphCtas : kSoftmaxCtas;
}

// A part of a warp owns a segment.
template <class T, int kSize, bool kBackward, bool kOrdered>
__global__ void __launch_bounds__(kGraphThreads, softmax_ctas<T>(kSize, kOrdered))
    segment_softmax_kernel(const __grid_constant__ SoftmaxLaunch s) {
  follow_previous_kernel();
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t segment = thread >> s.lanes.bits;
  if (segment >= s.problem.segments.count) return;
  const int lanes = 1 << s.lanes.bits;
  const PartOfWarp<accumulate_t<T>> team{static_cast<int>(thread & (lanes - 1)), lanes,
                                         1 << s.lanes.width_bits, lanes_of_team(s.lanes.bits)};
  const Span span(s.problem.segments, segment);
  if (span.count() > kLongSoftmax) {
    if (team.lane == 0) s.longs.segment[atomicAdd(s.longs.count, 1ull)] = segment;
    return;
  }
  run_segment<T, kSize, kBackward, kOrdered>(s.problem, team, span);
}

// A CTA owns a long one, and another.
template <class T, bool kBackward>
__global__ void __launch_bounds__(kLongSoftmaxThreads, 1)
    long_segment_softmax_kernel(const __grid_constant__ SoftmaxLaunch s) {
  using A = accumulate_t<T>;
  __shared__ A shared[kLongSoftmaxThreads];
  follow_previous_kernel();
  const WholeCta<A> team{static_cast<int>(threadIdx.x), kLongSoftmaxThreads,
                         1 << s.long_lanes.width_bits, shared};
  const auto count = static_cast<std::int64_t>(*s.longs.count);
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    run_segment<T, 1, kBackward, true>(s.problem, team,
                                       Span(s.problem.segments, s.longs.segment[i]));
  }
}

}  // namespace transformer_kernels::cuda
