// SPDX-License-Identifier: MIT
// Dropout on CUDA. A thread owns eight elements of a row (dropout_eight.cuh). Where the gradient of
// a bias is wanted, it walks down some rows and sums their gradients.
#pragma once

#include "core/cuda/direct_row.cuh"
#include "core/cuda/occupancy.h"
#include "pointwise/bias_sums.cuh"
#include "pointwise/dropout_eight.cuh"

namespace transformer_kernels::cuda {

// Dropout alone, forward with x in the place of dy or backward: dx = drop(dy).
template <class T, bool kPacks>
__global__ void __launch_bounds__(kPointwiseThreads)
    dropout_kernel(const __grid_constant__ DropoutBackwardProblem p) {
  using Eight = DropoutEight<T, kPacks>;
  follow_previous_kernel();
  const PointwisePlace at(Eight::kSize, 1);
  const Eight eight{p.cols, at.col};
  const std::int64_t row = at.first_row;
  if (!eight.has_columns() || row >= p.rows) return;
  typename Eight::Values value;
  eight.load(row_of<const T>(p.dy, row), value);
  Eight::drop(eight.numbers(p.draw, row * p.cols), p.draw, value);
  eight.store(row_of<T>(p.dx, row), value);
}

// 5 CTAs on an SM, or the 6 that the registers then allow, keep enough loads under way; more would
// take registers that the bias needs.
template <class T>
constexpr int dropout_add_ctas(bool packs, bool bias) {
  if (!packs) return 1;
  return ctas_by_threads(kPointwiseThreads, bias || sizeof(T) == 4 ? 5 : 8);
}

template <class T, bool kPacks, bool kBias>
__global__ void __launch_bounds__(kPointwiseThreads, dropout_add_ctas<T>(kPacks, kBias))
    bias_dropout_add_kernel(const __grid_constant__ DropoutForwardProblem p) {
  using Eight = DropoutEight<T, kPacks>;
  follow_previous_kernel();
  const PointwisePlace at(Eight::kSize, 1);
  const Eight eight{p.cols, at.col};
  const std::int64_t row = at.first_row;
  if (!eight.has_columns() || row >= p.rows) return;

  typename Eight::Values y, residual;
  eight.load(row_of<const T>(p.x, row), y);
  eight.load(row_of<const T>(p.residual, row), residual);
  const uint4 numbers = eight.numbers(p.draw, row * p.cols);  // while loads are on their way
  if constexpr (kBias) {
    typename Eight::Values bias;
    eight.load_bias(p.bias, p.bias_dtype != p.dtype, bias);
    Eight::add(y, bias);
  }
  Eight::drop(numbers, p.draw, y);
  Eight::add(y, residual);
  eight.store(row_of<T>(p.y, row), y);
}

// A thread walks down some rows; the next ones are on their way while it draws for those at hand.
template <class T, bool kPacks>
__global__ void __launch_bounds__(kPointwiseThreads, kPacks ? 4 : 2)
    dropout_sums_kernel(const __grid_constant__ DropoutBackwardProblem p,
                        const BiasSums<accumulate_t<T>> sums) {
  using Eight = DropoutEight<T, kPacks>;
  constexpr int kAhead = kPacks && sizeof(T) == 2 ? 2 : 1;
  follow_previous_kernel();
  const PointwisePlace at(Eight::kSize, sums.rows_per_thread);
  if (at.row(0) - threadIdx.y >= p.rows) return;
  const Eight eight{p.cols, at.col};
  typename Eight::Values dbias = {};
  typename Eight::Raw next[kAhead];
  const auto exists = [&](int i) {
    return eight.has_columns() && i < sums.rows_per_thread && at.row(i) < p.rows;
  };
  const auto fetch = [&](int i) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (exists(i + j)) eight.fetch(row_of<const T>(p.dy, at.row(i + j)), next[j]);
    }
  };
  fetch(0);
  for (int i = 0; exists(i); i += kAhead) {
    typename Eight::Raw raw[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) raw[j] = next[j];
    fetch(i + kAhead);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (!exists(i + j)) break;
      const std::int64_t row = at.row(i + j);
      typename Eight::Values dx;
      Eight::unpack(raw[j], dx);
      Eight::drop(eight.numbers(p.draw, row * p.cols), p.draw, dx);
      eight.store(row_of<T>(p.dx, row), dx);
      Eight::add(dbias, dx);
    }
  }
  auto* const out = sums.partial + at.row_block() * 2 * sums.pitch;
#pragma unroll
  for (int part = 0; part < Eight::kParts; ++part) {
    const std::int64_t count = eight.has_columns() ? eight.count_of(part) : 0;
    write_sums(out + eight.col_of(part), count, dbias[part]);
  }
}

}  // namespace transformer_kernels::cuda
