// SPDX-License-Identifier: MIT
// Rows after the last sequence: results are 0 there, and -inf in lse. Only the device knows where
// they begin.
#pragma once

#include <cuda_runtime.h>

#include "attention/problem.h"
#include "core/types.h"

namespace transformer_kernels::cuda {

inline constexpr int kTailThreads = 256;

// Rows of all heads of a result.
struct Tail {
  HeadRows result;
  const std::int32_t* end;  // the first row past all sequences
  std::int64_t rows;
  std::int64_t heads;
  std::int64_t dim;
};

template <class T>
__global__ void __launch_bounds__(kTailThreads) clear_tail_kernel(const Tail tail) {
  const std::int64_t first = *tail.end;
  const std::int64_t width = tail.heads * tail.dim;
  const std::int64_t numbers = (tail.rows - first) * width;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kTailThreads;
  for (std::int64_t i = blockIdx.x * kTailThreads + threadIdx.x; i < numbers; i += step) {
    const HeadRows& to = tail.result;
    const std::int64_t row = first + i / width;
    const std::int64_t head = i % width / tail.dim;
    static_cast<T*>(to.data)[row * to.row_stride + head * to.head_stride + i % tail.dim] = T{};
  }
}

// `statistic` is (heads, rows), as lse and lse_rest are.
template <class A>
__global__ void __launch_bounds__(kTailThreads)
    fill_tail_kernel(A* statistic, A value, const Tail tail) {
  const std::int64_t first = *tail.end;
  const std::int64_t width = tail.rows - first;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kTailThreads;
  for (std::int64_t i = blockIdx.x * kTailThreads + threadIdx.x; i < width * tail.heads;
       i += step) {
    statistic[i / width * tail.rows + first + i % width] = value;
  }
}

}  // namespace transformer_kernels::cuda
