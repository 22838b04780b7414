// SPDX-License-Identifier: MIT
#include "norm/column_sum.h"

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr int kColumnSumWarps = 16;

// A warp reads 32 * kSize columns of every 16th row; the CTA's warps meet in shared memory.
// W: storage of the gradients. Grid: x over columns, y over {dweight, dbias}.
template <class W, class V, int kSize>
__global__ void __launch_bounds__(kColumnSumWarps* kWarp)
    column_sum_kernel(const PartialGradients<V> p) {
  constexpr int kColumns = kWarp * kSize;
  __shared__ V sums[kColumnSumWarps][kColumns];
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
#endif
  const int which = static_cast<int>(blockIdx.x % 2);
  W* out = static_cast<W*>(which == 0 ? p.dweight : p.dbias);
  if (out == nullptr) return;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x / 2) * kColumns;
  const std::int64_t col = first + lane * kSize;
  V sum[kSize] = {};
  if (col < p.cols) {
    const V* source = p.partial + which * p.pitch + col;
#pragma unroll 4
    for (int row = warp; row < p.rows; row += kColumnSumWarps) {
      const V* at = source + row * 2 * p.pitch;
      if constexpr (kSize == 4) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(at));
        sum[0] += v.x;
        sum[1] += v.y;
        sum[2] += v.z;
        sum[3] += v.w;
      } else {
        sum[0] += *at;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) sums[warp][lane * kSize + k] = sum[k];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns && first + i < p.cols; i += kColumnSumWarps * kWarp) {
    V total = 0;
#pragma unroll
    for (int w = 0; w < kColumnSumWarps; ++w) total += sums[w][i];
    out[first + i] = narrow<W>(static_cast<accumulate_t<W>>(total));
  }
}

template <class W, int kSize, class V>
void run(const char* op, const Context& context, const PartialGradients<V>& p,
         bool after_previous) {
  if (p.cols == 0) return;
  const LaunchShape shape{.ctas = 2 * divide_up(p.cols, kWarp * kSize),
                          .threads = kColumnSumWarps * kWarp,
                          .after_previous = after_previous};
  launch(op, context, shape, &column_sum_kernel<W, V, kSize>, p);
}

}  // namespace

void sum_columns(const char* op, const Context& context, DType dtype,
                 const PartialGradients<float>& p, bool after_previous) {
  dispatch_float(dtype, [&]<class W>() {
    if constexpr (!std::is_same_v<W, double>) run<W, 4>(op, context, p, after_previous);
  });
}

void sum_columns(const char* op, const Context& context, DType, const PartialGradients<double>& p,
                 bool after_previous) {
  run<double, 1>(op, context, p, after_previous);
}

}  // namespace transformer_kernels::cuda
