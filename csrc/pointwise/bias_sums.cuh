// SPDX-License-Identifier: MIT
// Gradients of biases, summed by the threads of a PointwiseGrid: each thread sums its rows, a CTA
// adds up its threads' sums, and core/cuda/column_sum.h those of all CTAs.
#pragma once

#include "pointwise/plan.h"

namespace transformer_kernels::cuda {

// The sums of each CTA, row block by row block: partial[row block][which][pitch].
// `partial` is null where they are not wanted.
template <class A>
struct BiasSums {
  A* partial;
  std::int64_t pitch;
  int rows_per_thread;
};

// Adds up the sums of a CTA's rows of threads, in their order.
template <int kSize, class A>
__device__ __forceinline__ void write_sums(A* out, std::int64_t count, const A (&sum)[kSize]) {
  __shared__ A shared[kPointwiseThreads * kSize];
  const int threads = blockDim.x * blockDim.y;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kSize; ++k) shared[k * threads + thread] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0) return;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    A total = 0;
    for (int y = 0; y < blockDim.y; ++y) total += shared[k * threads + y * blockDim.x + thread];
    if (k < count) out[k] = total;
  }
}

}  // namespace transformer_kernels::cuda
