// SPDX-License-Identifier: MIT
// The product that takes every device, dtype and stride: 64 x 64 sums a CTA, 4 x 4 a thread,
// operands through shared memory. It is the fallback; the other engines are the fast ones.
#include "core/cuda/launch.cuh"
#include "core/rounding.h"
#include "linear/cuda/epilogue.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kTerms = 32;  // of a step, summed for themselves: long sums are as exact as others'
constexpr int kThreads = 256;
constexpr int kEach = kTile / 16;  // rows, and columns, of a thread: every sixteenth

template <class T>
__global__ void __launch_bounds__(kThreads) plain_product(const Product p) {
  using A = accumulate_t<T>;
  __shared__ A a[kTerms][kTile + 1];
  __shared__ A b[kTerms][kTile + 1];
  const std::int64_t col_tiles = (p.cols + kTile - 1) / kTile;
  const std::int64_t first_row = blockIdx.x / col_tiles * kTile;
  const std::int64_t first_col = blockIdx.x % col_tiles * kTile;
  const int own_row = threadIdx.x / 16;
  const int own_col = threadIdx.x % 16;
  A sums[kEach][kEach] = {};
  for (std::int64_t first = 0; first < p.terms; first += kTerms) {
    for (int i = threadIdx.x; i < kTile * kTerms; i += kThreads) {
      const int at = i / kTerms;
      const int term = i % kTerms;
      const std::int64_t row = first_row + at;
      const std::int64_t col = first_col + at;
      const std::int64_t k = first + term;
      const bool is_term = k < p.terms;
      a[term][at] = is_term && row < p.rows ? widen(element<T>(p.a, row, k)) : A{0};
      b[term][at] = is_term && col < p.cols ? widen(element<T>(p.b, k, col)) : A{0};
    }
    __syncthreads();
    A step[kEach][kEach] = {};
    for (int k = 0; k < kTerms; ++k) {
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
          step[r][c] += a[k][own_row + 16 * r] * b[k][own_col + 16 * c];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) sums[r][c] += step[r][c];
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
#pragma unroll
    for (int c = 0; c < kEach; ++c) {
      const std::int64_t row = first_row + own_row + 16 * r;
      const std::int64_t col = first_col + own_col + 16 * c;
      if (row < p.rows && col < p.cols) epilogue<T>(p, row, col, sums[r][c]);
    }
  }
}

}  // namespace

template <class T>
void run_plain(const Context& context, const Product& p) {
  constexpr std::int64_t kSide = kTile;
  launch(p.op, context,
         {.ctas = divide_up(p.rows, kSide) * divide_up(p.cols, kSide), .threads = kThreads},
         plain_product<T>, p);
}

template void run_plain<TFK_TYPE>(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
