// SPDX-License-Identifier: MIT
// What the backward pass on tensor cores needs of a row of scores, and the gradients of sinks,
// which follow from it.
#pragma once

#include "attention/common/scores.cuh"
#include "attention/sm80/tile.cuh"
#include "core/cuda/launch.cuh"

namespace transformer_kernels::cuda {

// What a kernel needs of a row: the origin of its powers, and delta. Aligned for one cp.async.
struct alignas(8) RowStatistics {
  float origin;
  float delta;
};

struct TensorCoreBackward {
  AttentionBackwardProblem problem;
  RowStatistics* statistics;  // in the order of lse
};

// A warp makes the statistics of a row.
template <class T>
__global__ void __launch_bounds__(256)
    tensor_core_statistics_kernel(const __grid_constant__ TensorCoreBackward a) {
  const AttentionBackwardProblem& p = a.problem;
  const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x) / kWarp;
  if (index >= p.rows()) return;
  const std::int64_t outer = index / p.queries;
  const std::int64_t row = index % p.queries;
  if (p.q_offsets != nullptr && row >= p.q_offsets[p.batch]) return;
  const int batch = p.q_offsets ? 0 : static_cast<int>(outer / p.heads);
  const int head = static_cast<int>(p.q_offsets ? outer : outer % p.heads);
  const GlobalRows<T> out = rows_of_head<T>(p.out, batch, row, head, p.value_dim);
  const GlobalRows<T> dout = rows_of_head<T>(p.dout, batch, row, head, p.value_dim);
  const int lane = threadIdx.x % kWarp;
  float sum = 0;
  constexpr int kPerPiece = GlobalRows<T>::kPerPiece;
  static_assert(kWarp * kPerPiece >= most_tensor_core_dim(sizeof(T)));
  if (lane * kPerPiece < out.dim) {
    using Piece = Pack<T, kPerPiece>;
    float x[kPerPiece], y[kPerPiece];
    Piece::unpack(load_global_once(out.data + lane * 16), x);
    Piece::unpack(load_global_once(dout.data + lane * 16), y);
#pragma unroll
    for (int i = 0; i < kPerPiece; ++i) sum = fmaf(x[i], y[i], sum);
  }
  sum = reduce_lanes<Add>(sum);
  if (lane != 0) return;
  const float lse = static_cast<const float*>(p.lse)[index];
  if (p.dlse != nullptr) sum -= static_cast<const float*>(p.dlse)[index];
  // A query that saw nothing has scores of minus infinity alone: any finite origin will do.
  a.statistics[index] = {lse == -INFINITY ? 0 : lse * Exponent<T>::kPerNatural, sum};
}

// dsinks = -sum over rows of exp(sink - lse) * delta; a CTA owns a head.
template <class T>
__global__ void __launch_bounds__(256)
    tensor_core_dsinks_kernel(const __grid_constant__ TensorCoreBackward a) {
  constexpr int kWarps = 256 / kWarp;
  const AttentionBackwardProblem& p = a.problem;
  const int head = static_cast<int>(blockIdx.x);
  const float sink = p.sinks.at(0, head, 0.0f) * Exponent<T>::kPerNatural;
  const bool packed = p.q_offsets != nullptr;
  const std::int64_t rows = packed ? p.q_offsets[p.batch] : p.queries;
  float sum = 0;
  for (std::int64_t b = 0; b < (packed ? 1 : p.batch); ++b) {
    const RowStatistics* const row = a.statistics + (b * p.heads + head) * p.queries;
    for (std::int64_t i = threadIdx.x; i < rows; i += 256) {
      sum -= Exponent<T>::power(sink - row[i].origin) * row[i].delta;
    }
  }
  __shared__ float sums[kWarps];
  sum = reduce_lanes<Add>(sum);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  static_cast<float*>(p.dsinks)[head] = total;
}

template <class T>
void launch_row_statistics(const char* op, const Context& context, const TensorCoreBackward& a) {
  const std::int64_t ctas = (a.problem.rows() + 256 / kWarp - 1) / (256 / kWarp);
  launch(op, context, LaunchShape{.ctas = ctas, .threads = 256}, &tensor_core_statistics_kernel<T>,
         a);
}

template <class T>
void launch_dsinks(const char* op, const Context& context, const TensorCoreBackward& a) {
  launch(op, context, LaunchShape{.ctas = a.problem.heads, .threads = 256},
         &tensor_core_dsinks_kernel<T>, a);
}

}  // namespace transformer_kernels::cuda
