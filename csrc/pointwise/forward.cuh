// SPDX-License-Identifier: MIT
// The forward pass on CUDA. A thread owns a pack of columns of one row or, with a bias, of a few
// rows, and reads the bias once for all of them. There is no loop, so that all loads are issued at
// once.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "pointwise/pack.cuh"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {

template <class T, int kSize, class Op, bool kBias>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_forward_kernel(const __grid_constant__ PointwiseForwardProblem p) {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;
  constexpr math::precision_of<T> kPrecision;
  constexpr int kRows = kBias ? kPointwiseBiasRows : 1;
  follow_previous_kernel();
  const PointwisePlace at(kSize, kRows);
  const std::int64_t count = p.cols - at.col;
  if (count <= 0) return;

  typename P::Raw x[kRows], up[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (at.row(i) >= p.rows) break;
    x[i] = load_pack<T, kSize>(at.element<const T>(p.x, i), count);
    if constexpr (Op::kGated) up[i] = load_pack<T, kSize>(at.element<const T>(p.up, i), count);
  }
  A bias[kSize], up_bias[kSize];
  if constexpr (kBias) {
    const bool is_wide = p.bias_dtype != p.dtype;
    load_bias<T>(p.bias, is_wide, at.col, count, bias);
    if constexpr (Op::kGated) load_bias<T>(p.up_bias, is_wide, at.col, count, up_bias);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (at.row(i) >= p.rows) return;
    A z[kSize], factor[kSize];
    P::unpack(x[i], z);
    if constexpr (Op::kGated) P::unpack(up[i], factor);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      z[k] = Op::Activation::value(kPrecision, kBias ? z[k] + bias[k] : z[k]);
      if constexpr (Op::kGated) z[k] *= kBias ? factor[k] + up_bias[k] : factor[k];
    }
    store_pack(at.element<T>(p.y, i), z, count);
  }
}

}  // namespace transformer_kernels::cuda
