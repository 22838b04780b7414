// SPDX-License-Identifier: MIT
#include "attention/common/row_gradients.cuh"

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

// ------------------------------------------------------------------ statistics

constexpr int kStatisticsThreads = 256;

template <class T>
struct StatisticsArguments {
  AttentionBackwardProblem problem;
  RowStatistics<accumulate_t<T>>* statistics;
  bool in_pieces;  // out and dout can be read 16 bytes at a time
};

// The dot product of two rows by a warp.
template <class P, class T>
__device__ __forceinline__ accumulate_t<T> dot(const T* x, const T* y, int columns, int lane) {
  accumulate_t<T> sum = 0;
  for (int c = lane * P::size; c < columns; c += kWarp * P::size) {
    accumulate_t<T> a[P::size], b[P::size];
    P::unpack(P::load(x + c), a);
    P::unpack(P::load(y + c), b);
#pragma unroll
    for (int i = 0; i < P::size; ++i) sum = fma(a[i], b[i], sum);
  }
  return reduce_lanes<Add>(sum);
}

template <class T>
__device__ __forceinline__ const T* row_of(const HeadRows& rows, std::int64_t batch,
                                           std::int64_t row, std::int64_t head) {
  return static_cast<const T*>(rows.data) + batch * rows.batch_stride + row * rows.row_stride +
         head * rows.head_stride;
}

// A warp makes the statistics of a row. Rows past the last sequence have none.
template <class T>
__global__ void __launch_bounds__(kStatisticsThreads)
    row_statistics_kernel(const __grid_constant__ StatisticsArguments<T> a) {
  using Element = Pack<T, 1>;
  using Piece = Pack<T, sizeof(T) < 8 ? 16 / sizeof(T) : 1>;
  const AttentionBackwardProblem& p = a.problem;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * (kStatisticsThreads / kWarp) + thread / kWarp;
  const int lane = thread % kWarp;
  if (index >= p.rows()) return;
  const std::int64_t row = index % p.queries;
  if (p.q_offsets != nullptr && row >= p.q_offsets[p.batch]) return;
  const std::int64_t head = index / p.queries % p.heads;
  const std::int64_t batch = index / p.queries / p.heads;
  const T* const out = row_of<T>(p.out, batch, row, head);
  const T* const dout = row_of<T>(p.dout, batch, row, head);
  const int columns = static_cast<int>(p.value_dim);
  const accumulate_t<T> sum =
      a.in_pieces ? dot<Piece>(out, dout, columns, lane) : dot<Element>(out, dout, columns, lane);
  if (lane == 0) a.statistics[index] = statistics_of<T>(p, index, sum);
}

// ------------------------------------------------------------------ sinks

constexpr int kSinkThreads = 1024;

template <class A>
struct SinkArguments {
  HeadNumbers sinks;
  const A* statistics;
  std::int64_t heads;
  std::int64_t batches;
  std::int64_t rows;        // of a head in a batch, those that do not exist among them
  const std::int32_t* end;  // where not null: before which rows exist
  A delta_factor;           // delta is so many times what stands for it
  A* dsinks;
};

// dsinks = -sum over rows of exp(sink - lse) * delta; a CTA owns a head. Statistics come in runs:
// kRun origins, then as many deltas.
template <class T, int kRun>
__global__ void __launch_bounds__(kSinkThreads)
    sink_gradients_kernel(const __grid_constant__ SinkArguments<accumulate_t<T>> a) {
  using A = accumulate_t<T>;
  constexpr int kWarps = kSinkThreads / kWarp;
  constexpr int kUnroll = sizeof(A) == 8 ? 1 : 4;  // exponentials in double precision are long
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t head = blockIdx.x;
  const std::int64_t rows = a.end == nullptr ? a.rows : *a.end;
  const A sink = a.sinks.at(0, head, A{0}) * Exponent<T>::kPerNatural;
  A sum = 0;
  for (std::int64_t batch = 0; batch < a.batches; ++batch) {
    const std::int64_t first = (batch * a.heads + head) * a.rows;
#pragma unroll(kUnroll)
    for (std::int64_t i = first + thread; i < first + rows; i += kSinkThreads) {
      const A* const origin = a.statistics + i / kRun * (2 * kRun) + i % kRun;
      sum = fma(Exponent<T>::power(sink - origin[0]), origin[kRun], sum);
    }
  }
  __shared__ A sums[kWarps];
  sum = reduce_lanes<Add>(sum);
  if (thread % kWarp == 0) sums[thread / kWarp] = sum;
  __syncthreads();
  static_assert(kWarps == kWarp);  // a lane for each
  if (thread >= kWarp) return;
  sum = reduce_lanes<Add>(sums[thread]);
  if (thread == 0) a.dsinks[head] = -a.delta_factor * sum;
}

template <class T, int kRun>
void launch_sink_gradients(const Context& context, const AttentionBackwardProblem& p,
                           const void* statistics, std::int64_t rows, const std::int32_t* end,
                           double delta_factor) {
  using A = accumulate_t<T>;
  launch(kOp, context, LaunchShape{.ctas = p.heads, .threads = kSinkThreads},
         &sink_gradients_kernel<T, kRun>,
         SinkArguments<A>{.sinks = p.sinks,
                          .statistics = static_cast<const A*>(statistics),
                          .heads = p.heads,
                          .batches = p.q_offsets == nullptr ? p.batch : 1,
                          .rows = rows,
                          .end = end,
                          .delta_factor = static_cast<A>(delta_factor),
                          .dsinks = static_cast<A*>(p.dsinks)});
}

}  // namespace

void make_row_statistics(const Context& context, const AttentionBackwardProblem& p,
                         void* statistics) {
  if (p.rows() == 0) return;
  const bool in_pieces = p.out.in_pieces(p.dtype) && p.dout.in_pieces(p.dtype) &&
                         p.value_dim * size_of(p.dtype) % 16 == 0;
  dispatch_float(p.dtype, [&]<class T>() {
    const LaunchShape shape{.ctas = divide_up(p.rows(), kStatisticsThreads / kWarp),
                            .threads = kStatisticsThreads};
    launch(kOp, context, shape, &row_statistics_kernel<T>,
           StatisticsArguments<T>{p, static_cast<RowStatistics<accumulate_t<T>>*>(statistics),
                                  in_pieces});
  });
}

void make_sink_gradients(const Context& context, const AttentionBackwardProblem& p,
                         const void* statistics) {
  if (p.dsinks == nullptr || p.heads == 0) return;
  const std::int32_t* const end = p.q_offsets == nullptr ? nullptr : p.q_offsets + p.batch;
  dispatch_float(p.dtype, [&]<class T>() {
    using Powers = std::conditional_t<sizeof(T) == 2, BFloat16, T>;  // those of 16 bits are alike
    launch_sink_gradients<Powers, 1>(context, p, statistics, p.queries, end, 1);
  });
}

void make_sink_gradients(const Context& context, const AttentionBackwardProblem& p,
                         const float* statistics, int head_blocks, float delta_factor) {
  if (p.dsinks == nullptr) return;
  launch_sink_gradients<BFloat16, kStatisticsBlock>(
      context, p, statistics, std::int64_t{head_blocks} * kStatisticsBlock, nullptr, delta_factor);
}

}  // namespace transformer_kernels::cuda
