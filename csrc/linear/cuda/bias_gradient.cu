// SPDX-License-Identifier: MIT
#include "linear/cuda/bias_gradient.h"

#include <algorithm>

#include "core/cuda/column_sum.h"
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/scratch.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr int kSumThreads = 128;

// A thread has a pack of columns, a CTA every gridDim.y-th row. The loads of a batch of rows are
// all on their way before the first row is added.
template <class T, int kSize>
__global__ void __launch_bounds__(kSumThreads)
    sum_every_nth_row(Rows dy, std::int64_t rows, std::int64_t cols, std::int64_t pitch,
                      accumulate_t<T>* partial) {
  using P = Pack<T, kSize>;
  constexpr int kBatch = 8;
#if __CUDA_ARCH__ >= 900
  let_next_kernel_start();
#endif
  const std::int64_t col = (std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x) * kSize;
  if (col >= cols) return;
  const T* const first = static_cast<const T*>(dy.data) + col;
  const std::int64_t step = gridDim.y;
  accumulate_t<T> sum[kSize] = {};
  const auto add = [&](typename P::Raw raw) {
    accumulate_t<T> value[kSize];
    P::unpack(raw, value);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum[i] += value[i];
  };
  std::int64_t row = blockIdx.y;
  for (; row + (kBatch - 1) * step < rows; row += kBatch * step) {
    typename P::Raw raw[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) raw[i] = P::load(first + (row + i * step) * dy.stride);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) add(raw[i]);
  }
  for (; row < rows; row += step) add(P::load(first + row * dy.stride));
  accumulate_t<T>* const to = partial + (2 * std::int64_t{blockIdx.y} + 1) * pitch + col;
#pragma unroll
  for (int i = 0; i < kSize; ++i) to[i] = sum[i];
}

template <class T, int kSize>
void sum_rows(const char* op, const Context& context, const BiasGradient& p) {
  using A = accumulate_t<T>;
  constexpr std::int64_t kMostParts = 256;
  constexpr std::int64_t kRowsOfPart = 16;
  const std::int64_t parts = std::min(kMostParts, divide_up(p.rows, kRowsOfPart));
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const Scratch partial(op, context, 2 * pitch * parts * sizeof(A));
  if (parts > 0) {
    launch(op, context,
           {.ctas = divide_up(p.cols, kSumThreads * kSize),
            .threads = kSumThreads,
            .ctas_y = static_cast<int>(parts)},
           sum_every_nth_row<T, kSize>, p.dy, p.rows, p.cols, pitch, partial.as<A>());
  }
  sum_columns(op, context, p.bias_dtype,
              PartialGradients<A>{.partial = partial.as<A>(),
                                  .rows = static_cast<int>(parts),
                                  .pitch = pitch,
                                  .cols = p.cols,
                                  .dweight = nullptr,
                                  .dbias = p.dbias,
                                  .accumulates = p.accumulates},
              device_limits(context.device.index).architecture >= 90);
}

}  // namespace

void bias_gradient(const char* op, const Context& context, const BiasGradient& p) {
  if (p.cols == 0) return;
  dispatch_float(p.dtype, [&]<class T>() {
    constexpr int kPack = sizeof(T) == 8 ? 1 : 16 / sizeof(T);
    const bool packs = p.cols % kPack == 0 && p.dy.stride % kPack == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.dy.data) % 16 == 0;
    if (packs) {
      sum_rows<T, kPack>(op, context, p);
    } else {
      sum_rows<T, 1>(op, context, p);
    }
  });
}

void bias_gradient(const Context& context, const Product& p) {
  if (p.dbias == nullptr) return;
  bias_gradient(p.op, context,
                {.dtype = p.dtype,
                 .bias_dtype = p.bias_dtype,
                 .rows = p.rows,
                 .cols = p.cols,
                 .dy = {p.out.data, p.out.row_step},
                 .dbias = p.dbias,
                 .accumulates = p.accumulates_dbias});
}

}  // namespace transformer_kernels::cuda
