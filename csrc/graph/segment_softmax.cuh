// SPDX-License-Identifier: MIT
// Softmax of segments. A team of threads owns a segment: a part of a warp, or a CTA for a long
// segment. 2^width_bits neighbouring threads take the columns; the remaining bits of a thread's
// number stride over the segment's edges. The first values that a thread reads stay in its
// registers; the rest are read again.
#pragma once

#include <limits>

#include "core/cuda/exponent.cuh"
#include "core/cuda/reduce.cuh"
#include "graph/place.cuh"
#include "pointwise/pack.cuh"

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

// A part of a warp, whose lanes are all here: a sum of theirs is one of the whole warp's.
struct PartOfWarp {
  int lane;  // in the team
  int bits;  // of the number of its threads
  int width_bits;

  // Reduces over the threads of one column; every one of them gets the result.
  template <class Merge, class A, int kSize>
  __device__ __forceinline__ void reduce(A (&value)[kSize]) const {
    for (int bit = bits - 1; bit >= width_bits; --bit) {
#pragma unroll
      for (A& v : value) v = Merge()(v, __shfl_xor_sync(kAllLanes, v, 1 << bit));
    }
  }
};

// A CTA.
template <class A>
struct WholeCta {
  int lane;
  int bits;
  int width_bits;
  A* shared;  // [warps][width]

  template <class Merge>
  __device__ __forceinline__ void reduce(A (&value)[1]) const {
    const int width = 1 << width_bits;
    A v = value[0];
    for (int step = kWarp / 2; step >= width; step /= 2) {
      v = Merge()(v, __shfl_xor_sync(kAllLanes, v, step));
    }
    __syncthreads();
    if (lane % kWarp < width) shared[lane / kWarp * width + lane % kWarp] = v;
    __syncthreads();
    const int col = lane & (width - 1);
    v = shared[col];
    for (int warp = 1; warp < kLongSoftmaxThreads / kWarp; ++warp) {
      v = Merge()(v, shared[warp * width + col]);
    }
    value[0] = v;
  }
};

// The larger ones of two pairs of 16-bit numbers; NaN is passed over.
template <class T>
struct MaxOfPairs {
  __device__ __forceinline__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    using Pair = std::conditional_t<std::is_same_v<T, Half>, __half2, __nv_bfloat162>;
    const Pair larger = __hmax2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
    return reinterpret_cast<const std::uint32_t&>(larger);
  }
};

// The largest numbers of packs, column by column. Those of 16 bits are compared in pairs.
template <class T, int kSize>
struct Largest {
  using P = Pack<T, kSize>;
  static constexpr bool kPairs = sizeof(T) == 2 && kSize > 1;
  using Number = std::conditional_t<kPairs, std::uint32_t, accumulate_t<T>>;
  using Merge = std::conditional_t<kPairs, MaxOfPairs<T>, Max>;
  static constexpr int kNumbers = kPairs ? kSize / 2 : kSize;

  Number number[kNumbers];

  __device__ __forceinline__ static void numbers_of(typename P::Raw raw, Number (&out)[kNumbers]) {
    if constexpr (kPairs) {
      out[0] = raw.x;
      out[1] = raw.y;
      out[2] = raw.z;
      out[3] = raw.w;
    } else {
      P::unpack(raw, out);
    }
  }
  __device__ __forceinline__ explicit Largest(typename P::Raw lowest) {
    numbers_of(lowest, number);
  }
  __device__ __forceinline__ void observe(typename P::Raw raw) {
    Number other[kNumbers];
    numbers_of(raw, other);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) number[i] = Merge()(number[i], other[i]);
  }
  __device__ __forceinline__ void unpack(accumulate_t<T> (&out)[kSize]) const {
    if constexpr (kPairs) {
      P::unpack(make_uint4(number[0], number[1], number[2], number[3]), out);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) out[i] = number[i];
    }
  }
};

// 1 / sum of a softmax, which is at least 1; correct to the last bit or the one before.
__device__ __forceinline__ double one_over_sum(double sum) { return 1 / sum; }
__device__ __forceinline__ float one_over_sum(float sum) {
  const float guess = reciprocal_approximate(sum);
  return fmaf(guess, fmaf(-sum, guess, 1.0f), guess);
}

// A few columns of one segment, a pack, in the places of one thread: first, first + step, ... The
// values of the first kKept places stay in registers. Threads beyond the columns have no places; a
// value without a place changes no result: it is -inf in a softmax, 0 in its gradient. `kOrdered`:
// the edges may have an order.
template <class T, int kSize, bool kOrdered, class Team>
struct SegmentColumns {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  using Raw = typename P::Raw;
  static constexpr int kKept = kSoftmaxKept;
  static constexpr A kLowest = -std::numeric_limits<A>::infinity();

  const SegmentSoftmaxProblem& p;
  const Team& team;
  std::int64_t col;
  std::int64_t first;  // the first place
  std::int64_t end;
  int kept;  // places that stay in registers

  __device__ __forceinline__ SegmentColumns(const SegmentSoftmaxProblem& problem, const Team& of,
                                            const Span& span, std::int64_t column)
      : p(problem),
        team(of),
        col(column),
        first(span.begin + (of.lane >> of.width_bits)),
        end(column < problem.cols ? span.end : span.begin) {
    const std::int64_t most = std::int64_t{kKept} << step_bits();
    const int near = static_cast<int>(max(min(end - first, most), std::int64_t{0}));
    kept = (near + (1 << step_bits()) - 1) >> step_bits();
  }

  __device__ __forceinline__ int step_bits() const { return team.bits - team.width_bits; }
  __device__ __forceinline__ std::int64_t place(int i) const {
    return first + (static_cast<std::int64_t>(i) << step_bits());
  }

  // The pack in a place, of x and alike; null where there is none.
  template <class E>
  __device__ __forceinline__ E* pack_at(const Rows& rows, std::int64_t place) const {
    const std::int64_t number = kOrdered ? number_at(p.segments, place) : place;
    return number < 0 ? nullptr : row_of<E>(rows, number) + col;
  }
  __device__ __forceinline__ Raw load(const Rows& rows, std::int64_t place, Raw nothing) const {
    const T* const from = pack_at<const T>(rows, place);
    return kOrdered && from == nullptr ? nothing : load_pack<T, kSize>(from, kSize);
  }
  __device__ __forceinline__ void store(std::int64_t place, const A (&value)[kSize]) const {
    T* const to = pack_at<T>(p.y, place);
    if (!kOrdered || to != nullptr) P::store(to, P::pack(value));
  }

  // All leave together; with an order, its numbers first.
  __device__ __forceinline__ void load_kept(const Rows& rows, Raw nothing,
                                            Raw (&raw)[kKept]) const {
    std::int64_t number[kKept];
    if constexpr (kOrdered) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) number[i] = i < kept ? number_at(p.segments, place(i)) : -1;
    }
    const T* from = row_of<const T>(rows, kOrdered ? 0 : first) + col;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      raw[i] = nothing;
      if constexpr (kOrdered) {
        if (number[i] >= 0) raw[i] = load_pack<T, kSize>(from + number[i] * rows.stride, kSize);
      } else {
        if (i < kept) raw[i] = load_pack<T, kSize>(from, kSize);
        from += rows.stride << step_bits();
      }
    }
  }
  // Stores what make(i, value) says of those that are kept.
  template <class Make>
  __device__ __forceinline__ void store_kept(Make&& make) const {
    T* to = row_of<T>(p.y, kOrdered ? 0 : first) + col;
    for_each_kept([&](int i) {
      if (i < kept) {
        A value[kSize];
        make(i, value);
        if constexpr (kOrdered) {
          store(place(i), value);
        } else {
          P::store(to, P::pack(value));
        }
      }
      to += p.y.stride << step_bits();
    });
  }
  // Calls body(i) of those that are kept in registers, body(place) of the others.
  template <class Body>
  __device__ __forceinline__ void for_each_kept(Body&& body) const {
#pragma unroll
    for (int i = 0; i < kKept; ++i) body(i);
  }
  template <class Body>
  __device__ __forceinline__ void for_each_left(Body&& body) const {
#pragma unroll 1
    for (std::int64_t at = place(kKept); at < end; at += std::int64_t{1} << step_bits()) body(at);
  }

  __device__ __forceinline__ static Raw pack_of(A value) {
    A values[kSize];
#pragma unroll
    for (A& v : values) v = value;
    return P::pack(values);
  }

  __device__ __forceinline__ void softmax() const {
    const Raw nothing = pack_of(kLowest);
    Raw raw[kKept];
    load_kept(p.x, nothing, raw);
    Largest<T, kSize> largest(nothing);
    for_each_kept([&](int i) { largest.observe(raw[i]); });
    for_each_left([&](std::int64_t at) { largest.observe(load(p.x, at, nothing)); });
    team.template reduce<typename Largest<T, kSize>::Merge>(largest.number);
    A top[kSize];
    A sum[kSize] = {};
    largest.unpack(top);
    const auto powers_of = [&](Raw from, A(&v)[kSize]) {
      using E = Exponent<T>;
      unpack_again(from, v);
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] = E::power((v[e] - top[e]) * E::kPerNatural);
    };
    const auto add = [&](const A(&v)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum[e] += v[e];
    };
    for_each_left([&](std::int64_t at) {  // first: powers take more registers than what is loaded
      A v[kSize];
      powers_of(load(p.x, at, nothing), v);
      add(v);
    });
    A power[kKept][kSize];
    for_each_kept([&](int i) {
      powers_of(raw[i], power[i]);
      add(power[i]);
    });
    team.template reduce<Add>(sum);
#pragma unroll
    for (A& v : sum) v = one_over_sum(v);
    store_kept([&](int i, A(&v)[kSize]) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] = power[i][e] * sum[e];
    });
    for_each_left([&](std::int64_t at) {
      A v[kSize];
      powers_of(load(p.x, at, nothing), v);
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] *= sum[e];
      store(at, v);
    });
  }

  // x is the forward pass's result.
  __device__ __forceinline__ void gradient() const {
    const Raw nothing = pack_of(0);
    A sum[kSize] = {};
    const auto add_product = [&](Raw y, Raw dy) {
      A v[kSize], w[kSize];
      P::unpack(y, v);
      P::unpack(dy, w);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum[e] += v[e] * w[e];
    };
    for_each_left([&](std::int64_t at) {  // first: nothing is kept yet
      add_product(load(p.x, at, nothing), load(p.dy, at, nothing));
    });
    Raw raw_y[kKept], raw_dy[kKept];
    load_kept(p.x, nothing, raw_y);
    load_kept(p.dy, nothing, raw_dy);
    for_each_kept([&](int i) { add_product(raw_y[i], raw_dy[i]); });
    team.template reduce<Add>(sum);
    const auto derive = [&](Raw y, Raw dy, A(&v)[kSize]) {
      A w[kSize];
      unpack_again(y, v);
      unpack_again(dy, w);
#pragma unroll
      for (int e = 0; e < kSize; ++e) v[e] *= w[e] - sum[e];
    };
    store_kept([&](int i, A(&v)[kSize]) { derive(raw_y[i], raw_dy[i], v); });
    for_each_left([&](std::int64_t at) {
      A v[kSize];
      derive(load(p.x, at, nothing), load(p.dy, at, nothing), v);
      store(at, v);
    });
  }

  __device__ __forceinline__ static void unpack_again(Raw raw, A (&value)[kSize]) {
    if constexpr (kSize == 1) {
      P::unpack(raw, value);
    } else {
      P::unpack_again(raw, value);
    }
  }
};

template <class T, int kSize, bool kBackward, bool kOrdered, class Team>
__device__ __forceinline__ void run_segment(const SegmentSoftmaxProblem& p, const Team& team,
                                            const Span& span) {
  const int width = 1 << team.width_bits;
  for (std::int64_t first = 0; first < p.cols; first += width * kSize) {
    const SegmentColumns<T, kSize, kOrdered, Team> columns(
        p, team, span, first + (team.lane & (width - 1)) * kSize);
    if constexpr (kBackward) {
      columns.gradient();
    } else {
      columns.softmax();
    }
  }
}

// A part of a warp owns a segment; one of more than kLongSoftmax edges is left to a CTA.
template <class T, int kSize, bool kBackward, bool kOrdered>
__global__ void __launch_bounds__(kGraphThreads, softmax_ctas(kSize, kBackward, sizeof(T)))
    segment_softmax_kernel(const __grid_constant__ SoftmaxLaunch s) {
  follow_previous_kernel();
  const Segments& segments = s.problem.segments;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t segment = thread >> s.lanes.bits;
  const PartOfWarp team{static_cast<int>(thread & ((1 << s.lanes.bits) - 1)), s.lanes.bits,
                        s.lanes.width_bits};
  Span span;
  if (segment < segments.count) span = Span(segments, segment);
  if (span.count() > kLongSoftmax) {
    if (team.lane == 0) s.longs.segment[atomicAdd(s.longs.count, 1ull)] = segment;
    span = {};
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
  const WholeCta<A> team{static_cast<int>(threadIdx.x), kLongSoftmaxBits, s.long_lanes.width_bits,
                         shared};
  const auto count = static_cast<std::int64_t>(*s.longs.count);
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    run_segment<T, 1, kBackward, true>(s.problem, team,
                                       Span(s.problem.segments, s.longs.segment[i]));
  }
}

}  // namespace transformer_kernels::cuda
