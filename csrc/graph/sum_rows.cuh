// SPDX-License-Identifier: MIT
// Sums of rows that lie in the order of their segments, one after the other. Neighbouring threads
// share a row of the result, a pack each, and own a few neighbouring segments: loads of the next
// segment's rows begin before the last rows of this one have arrived.
#pragma once

#include "graph/gather_reduce.cuh"

namespace transformer_kernels::cuda {

// The rows of the segments from `segment` to `last`, in turn. Long ones are passed over.
template <class T, int kSize>
struct RowSums {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;

  // Rows of one segment that are loaded together.
  static constexpr std::int64_t kNone = -1;
  static constexpr std::int64_t kNothingLeft = -2;
  struct Batch {
    typename P::Raw raw[kSumRows];
    std::int64_t ends;  // the segment whose last rows these are, or one of the above
  };

  const ReduceProblem& p;
  std::int64_t col;
  std::int64_t segment;  // of the next rows
  std::int64_t last;
  Span left;  // of it
  A sum[kSize] = {};

  __device__ __forceinline__ RowSums(const ReduceProblem& problem, std::int64_t column,
                                     std::int64_t first, std::int64_t end)
      : p(problem),
        col(column),
        segment(first),
        last(end) {
    open();
  }

  __device__ __forceinline__ void open() {
    for (; segment < last; ++segment) {
      left = Span(p.segments, segment);
      if (left.count() <= kLongSegment) return;
    }
  }

  __device__ __forceinline__ void fetch(Batch& batch) {
    const std::int64_t count = segment < last ? left.count() : 0;
    const T* from = row_of<const T>(p.x, left.begin) + col;
#pragma unroll
    for (int k = 0; k < kSumRows; ++k) {
      batch.raw[k] = {};
      if (k < count) batch.raw[k] = load_pack<T, kSize>(from, kSize);
      from += p.x.stride;
    }
    left.begin += kSumRows;
    batch.ends = segment < last ? kNone : kNothingLeft;
    if (segment == last || count > kSumRows) return;
    batch.ends = segment++;
    open();
  }

  __device__ __forceinline__ void add(const Batch& batch) {
#pragma unroll
    for (int k = 0; k < kSumRows; ++k) {
      A value[kSize];
      P::unpack(batch.raw[k], value);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum[e] += value[e];
    }
    if (batch.ends >= 0) finish(batch.ends);
  }

  __device__ __forceinline__ void finish(std::int64_t done) {
    const A scale = p.mean ? reciprocal(static_cast<A>(Span(p.segments, done).count())) : A{1};
#pragma unroll
    for (A& v : sum) v *= scale;
    P::store(row_of<T>(p.y, done) + col, P::pack(sum));
#pragma unroll
    for (A& v : sum) v = 0;
  }
};

template <class T, int kSize>
__global__ void __launch_bounds__(kGraphThreads, sum_ctas(sizeof(T)))
    sum_rows_kernel(const __grid_constant__ ReduceLaunch<accumulate_t<T>> s) {
  follow_previous_kernel();
  const ReduceProblem& p = s.problem;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kGraphThreads + threadIdx.x;
  const std::int64_t unit = thread >> s.row.bits;
  const std::int64_t group = s.row.chunks == 1 ? unit : unit / s.row.chunks;
  const std::int64_t first = group * s.segments;
  if (first >= p.segments.count) return;
  const std::int64_t last = min(first + s.segments, p.segments.count);
  const std::int64_t chunk = unit - group * s.row.chunks;
  if (chunk == 0 && s.longs.counts != nullptr) {
    for (std::int64_t segment = first; segment < last; ++segment) {
      const Span span(p.segments, segment);
      if (span.count() > kLongSegment) cut_into_pieces(s, segment, span);
    }
  }
  const std::int64_t pack = (chunk << s.row.bits) + (thread & (s.row.count() - 1));
  if (pack * kSize >= p.cols) return;
  RowSums<T, kSize> sums(p, pack * kSize, first, last);
  typename RowSums<T, kSize>::Batch batch[kSumBatches];
#pragma unroll
  for (auto& next : batch) sums.fetch(next);
  // Batches take turns, so that the first is the one whose loads began earliest.
  while (batch[0].ends != sums.kNothingLeft) {
#pragma unroll
    for (auto& next : batch) {
      sums.add(next);
      sums.fetch(next);
    }
  }
}

}  // namespace transformer_kernels::cuda
