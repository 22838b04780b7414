// SPDX-License-Identifier: MIT
#include "core/cuda/column_sum.h"

#include "core/cuda/launch.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/reduce.cuh"
#include "core/dispatch.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {
namespace {

constexpr int kColumnSumWarps = 16;

// kSize neighbours, in one load.
template <class V, int kSize>
struct Neighbours {
  V value[kSize];

  static __device__ __forceinline__ Neighbours load(const V* at) {
    if constexpr (kSize == 4) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(at));
      return {{v.x, v.y, v.z, v.w}};
    } else {
      return {{*at}};
    }
  }
};

// A warp reads 32 * kSize columns of every 16th row; the CTA's warps meet in shared memory. The
// loads of a batch of rows are all on their way before the first row is added.
// W: storage of the gradients. Grid: x over columns, y over {dweight, dbias}.
template <class W, class V, int kSize>
__global__ void __launch_bounds__(kColumnSumWarps* kWarp)
    column_sum_kernel(const PartialGradients<V> p) {
  constexpr int kColumns = kWarp * kSize;
  constexpr int kBatch = 8;
  using N = Neighbours<V, kSize>;
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
  const auto add = [&](const N& row) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum[k] += row.value[k];
  };
  if (col < p.cols) {
    const V* const source = p.partial + which * p.pitch + col;
    const auto load = [&](int row) { return N::load(source + row * 2 * p.pitch); };
    int row = warp;
    for (; row + (kBatch - 1) * kColumnSumWarps < p.rows; row += kBatch * kColumnSumWarps) {
      N batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) batch[i] = load(row + i * kColumnSumWarps);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) add(batch[i]);
    }
    for (; row < p.rows; row += kColumnSumWarps) add(load(row));
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) sums[warp][lane * kSize + k] = sum[k];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns && first + i < p.cols; i += kColumnSumWarps * kWarp) {
    V total = 0;
#pragma unroll
    for (int w = 0; w < kColumnSumWarps; ++w) total += sums[w][i];
    if (p.accumulates) total += widen(out[first + i]);
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
