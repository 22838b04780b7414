// SPDX-License-Identifier: MIT
#include "linear/cuda/dequantize.h"

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/rounding.h"
#include "linear/cuda/scale.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 8;  // numbers of a thread: neighbours of a row

struct Dequantize {
  QuantizedMatrix weight;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t threads_a_row;
  void* to;
};

// Nibbles are numbers of two's complement, the even column's in the low one.
__device__ __forceinline__ int number_at(const QuantizedMatrix& weight, std::int64_t row,
                                         std::int64_t col) {
  const auto* const line =
      static_cast<const std::int8_t*>(weight.packed) + row * weight.packed_stride;
  if (weight.bits == 8) return line[col];
  const int byte = line[col / 2];
  return col % 2 == 0 ? static_cast<std::int8_t>(byte << 4) >> 4 : byte >> 4;
}

template <class T>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const Dequantize p) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = index / p.threads_a_row;
  const std::int64_t first = index % p.threads_a_row * kEach;
  if (row >= p.rows) return;
  T* const to = static_cast<T*>(p.to) + row * p.cols;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t col = first + i;
    if (col >= p.cols) break;
    const float scale = scale_at(p.weight.scales, p.weight.scales_dtype,
                                 row * p.weight.scales_stride + col / p.weight.group);
    to[col] = narrow<T>(number_at(p.weight, row, col) * scale);
  }
}

}  // namespace

template <class T>
void dequantize(const Context& context, const QuantizedMatrix& weight, std::int64_t rows,
                std::int64_t cols, const Matrix& to) {
  const std::int64_t threads_a_row = divide_up(cols, std::int64_t{kEach});
  if (rows * threads_a_row == 0) return;
  launch("quantized_linear", context,
         {.ctas = divide_up(rows * threads_a_row, std::int64_t{kThreads}), .threads = kThreads},
         dequantize_kernel<T>, Dequantize{weight, rows, cols, threads_a_row, to.data});
}

template void dequantize<TFK_TYPE>(const Context& context, const QuantizedMatrix& weight,
                                   std::int64_t rows, std::int64_t cols, const Matrix& to);

}  // namespace transformer_kernels::cuda
