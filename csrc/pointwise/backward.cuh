// SPDX-License-Identifier: MIT
// The backward pass on CUDA. Without a bias, a thread owns a pack of one row, as in the forward
// pass. With one, a thread walks down some rows, the next of which is on its way while it computes
// the one at hand, and sums the gradients of their biases; a CTA adds up its threads' sums in
// shared memory, and core/cuda/column_sum.h those of all CTAs. Operands that are not aligned go
// element by element and always take the second way, which works without a bias too.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "pointwise/bias_sums.cuh"
#include "pointwise/pack.cuh"
#include "pointwise/plan.h"

namespace transformer_kernels::cuda {

// The inputs of one pack, and what becomes of them.
template <class T, int kSize, class Op>
struct PointwiseGradient {
  using A = accumulate_t<T>;
  using P = Pack<T, kSize>;

  typename P::Raw dy, x, up;

  __device__ __forceinline__ void load(const PointwiseBackwardProblem& p, const PointwisePlace& at,
                                       int i, std::int64_t count) {
    dy = load_pack<T, kSize>(at.element<const T>(p.dy, i), count);
    x = load_pack<T, kSize>(at.element<const T>(p.x, i), count);
    if constexpr (Op::kGated) up = load_pack<T, kSize>(at.element<const T>(p.up, i), count);
  }

  // Writes dx, dup and y, and gives the first two. The biases are read where kBias.
  template <bool kBias>
  __device__ __forceinline__ void finish(const PointwiseBackwardProblem& p,
                                         const PointwisePlace& at, int i, std::int64_t count,
                                         const A (&bias)[kSize], const A (&up_bias)[kSize],
                                         A (&dx)[kSize], A (&dup)[kSize]) const {
    A z[kSize], factor[kSize], y[kSize];
    P::unpack(dy, dx);
    P::unpack(x, z);
    if constexpr (Op::kGated) P::unpack(up, factor);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if constexpr (kBias) z[k] += bias[k];
      const auto f = Op::Activation::value_and_slope(math::precision_of<T>{}, z[k]);
      y[k] = f.value;
      if constexpr (Op::kGated) {
        if constexpr (kBias) factor[k] += up_bias[k];
        y[k] *= factor[k];
        dup[k] = dx[k] * f.value;
        dx[k] *= factor[k];
      }
      dx[k] *= f.slope;
    }
    store_pack(at.element<T>(p.dx, i), dx, count);
    if constexpr (Op::kGated) store_pack(at.element<T>(p.dup, i), dup, count);
    if (p.y.data != nullptr) store_pack(at.element<T>(p.y, i), y, count);
  }
};

template <class T, int kSize, class Op>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_backward_kernel(const __grid_constant__ PointwiseBackwardProblem p) {
  follow_previous_kernel();
  const PointwisePlace at(kSize, 1);
  const std::int64_t count = p.cols - at.col;
  if (count <= 0 || at.first_row >= p.rows) return;
  PointwiseGradient<T, kSize, Op> pack;
  pack.load(p, at, 0, count);
  accumulate_t<T> none[kSize], dx[kSize], dup[kSize];
  pack.template finish<false>(p, at, 0, count, none, none, dx, dup);
}

template <class T, int kSize, class Op>
__global__ void __launch_bounds__(kPointwiseThreads)
    pointwise_backward_bias_kernel(const __grid_constant__ PointwiseBackwardProblem p,
                                   const BiasSums<accumulate_t<T>> sums) {
  using A = accumulate_t<T>;
  follow_previous_kernel();
  const PointwisePlace at(kSize, sums.rows_per_thread);
  if (at.row(0) - threadIdx.y >= p.rows) return;
  const std::int64_t count = p.cols - at.col;
  A bias[kSize], up_bias[kSize], dbias[kSize] = {}, dup_bias[kSize] = {};
  if (count > 0) {
    const bool is_wide = p.bias_dtype != p.dtype;
    load_bias<T>(p.bias, is_wide, at.col, count, bias);
    if constexpr (Op::kGated) load_bias<T>(p.up_bias, is_wide, at.col, count, up_bias);
    const auto exists = [&](int i) { return i < sums.rows_per_thread && at.row(i) < p.rows; };
    PointwiseGradient<T, kSize, Op> next;
    if (exists(0)) next.load(p, at, 0, count);
    for (int i = 0; exists(i); ++i) {
      const PointwiseGradient<T, kSize, Op> pack = next;
      if (exists(i + 1)) next.load(p, at, i + 1, count);
      A dx[kSize], dup[kSize];
      pack.template finish<true>(p, at, i, count, bias, up_bias, dx, dup);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        dbias[k] += dx[k];
        if constexpr (Op::kGated) dup_bias[k] += dup[k];
      }
    }
  }
  if (sums.partial == nullptr) return;
  A* const out = sums.partial + at.row_block() * 2 * sums.pitch + at.col;
  write_sums(out, count, dbias);
  if constexpr (Op::kGated) write_sums(out + sums.pitch, count, dup_bias);
}

}  // namespace transformer_kernels::cuda
