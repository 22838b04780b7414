// SPDX-License-Identifier: MIT
// The sum of the chunks of a row, in an order that depends on their number alone. A CTA has a row
// of a group; a warp takes every fourth chunk, a lane some columns.
#pragma once

#include "attention/decode/common/sequence.cuh"
#include "core/cuda/launch.cuh"

namespace transformer_kernels::cuda {

inline constexpr int kCombineWarps = 4;

template <class T, class E>
__global__ void __launch_bounds__(kCombineWarps* kWarp)
    combine_chunks(const KvCacheProblem p, const CacheGrid grid, const CacheParts parts) {
  constexpr int kColumns = kMostDim / kWarp;
  __shared__ float other[kCombineWarps][kMostDim];
  __shared__ float2 tops[kCombineWarps];
#if __CUDA_ARCH__ >= 900
  wait_for_previous_kernel();
#endif
  const auto rows = static_cast<unsigned>(p.group_rows());
  const int row = static_cast<int>(blockIdx.x % rows);
  const int kv_head = static_cast<int>(blockIdx.x / rows % static_cast<unsigned>(p.kv_heads));
  const int batch = static_cast<int>(blockIdx.x / rows / static_cast<unsigned>(p.kv_heads));
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int count = chunks_of(p, band_of(p, length_of(p, batch)), grid.most).count;
  if (count == 1) return;
  const float2* const numbers = reinterpret_cast<const float2*>(parts.top_and_sum);
  const auto part = [&](int chunk) { return part_row(p, grid, batch, kv_head, chunk, row); };
  float top = kNoScore;
  for (int c = lane; c < count; c += kWarp) top = fmaxf(top, numbers[part(c)].x);
  top = reduce_lanes<Max>(top);
  float sum = 0;
  float out[kColumns] = {};
#pragma unroll 4
  for (int c = warp; c < count; c += kCombineWarps) {
    const float2 own = numbers[part(c)];
    const float* const from = parts.out + part(c) * parts.width;
    const float factor = E::power(own.x - top);
    sum += own.y * factor;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = lane + i * kWarp;
      if (column < parts.width) out[i] = fmaf(from[column], factor, out[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) other[warp][lane + i * kWarp] = out[i];
  if (lane == 0) tops[warp] = {top, sum};
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kCombineWarps; ++w) sum += tops[w].y;
  const GroupRow at = GroupRow::of(p, kv_head, row);
  const RowTotal<E> total = RowTotal<E>::of(p, at.head, top, sum);
  if (threadIdx.x == 0) store_lse(p, batch, at, total.lse);
  for (int column = threadIdx.x; column < p.value_dim; column += kCombineWarps * kWarp) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kCombineWarps; ++w) value += other[w][column];
    store_out<T>(p, batch, at, column, value * total.inverse);
  }
}

template <class T, class E>
void launch_combine(const char* op, const Context& context, const KvCacheProblem& p,
                    const CacheGrid& grid, const CacheParts& parts) {
  const bool follows = device_limits(context.device.index).architecture >= 90;
  launch(op, context,
         {.ctas = p.batch * p.kv_heads * p.group_rows(),
          .threads = kCombineWarps * kWarp,
          .after_previous = follows},
         &combine_chunks<T, E>, p, grid, parts);
}

}  // namespace transformer_kernels::cuda
