// SPDX-License-Identifier: MIT
// The product that takes every device, dtype and stride. It is the fallback; the other engines are
// the fast ones.
#include "core/cuda/launch.cuh"
#include "core/rounding.h"
#include "linear/cuda/epilogue.cuh"
#include "linear/plain/tile.cuh"

namespace transformer_kernels::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kPlainThreads) plain_product(const Product p) {
  using A = accumulate_t<T>;
  const std::int64_t col_tiles = (p.cols + kPlainTile - 1) / kPlainTile;
  const std::int64_t row = blockIdx.x / col_tiles * kPlainTile;
  const std::int64_t col = blockIdx.x % col_tiles * kPlainTile;
  plain_tile<A>(
      p.terms,
      [&](int at, std::int64_t k) {
        return row + at < p.rows ? widen(element<T>(p.a, row + at, k)) : A{0};
      },
      [&](std::int64_t k, int at) {
        return col + at < p.cols ? widen(element<T>(p.b, k, col + at)) : A{0};
      },
      [&](int r, int c, A sum) {
        if (row + r < p.rows && col + c < p.cols) epilogue<T>(p, row + r, col + c, sum);
      });
}

}  // namespace

template <class T>
void run_plain(const Context& context, const Product& p) {
  constexpr std::int64_t kSide = kPlainTile;
  launch(p.op, context,
         {.ctas = divide_up(p.rows, kSide) * divide_up(p.cols, kSide), .threads = kPlainThreads},
         plain_product<T>, p);
}

template void run_plain<TFK_TYPE>(const Context& context, const Product& p);

}  // namespace transformer_kernels::cuda
