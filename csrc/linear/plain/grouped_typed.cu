// SPDX-License-Identifier: MIT
// Products of groups of rows that take every device, dtype and stride: the fallback.
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/row_blocks.h"
#include "linear/cuda/epilogue.cuh"
#include "linear/cuda/grouped_engines.h"
#include "linear/plain/tile.cuh"

namespace transformer_kernels::cuda {
namespace groups {  // tools/kernel_budget.toml counts kernels of it by themselves
namespace {

template <class T>
using A = accumulate_t<T>;

// Number (row, col) of the groups' rows, 0 where the index is out of range.
template <class T>
__device__ __forceinline__ A<T> number_at(const IndexedRows& rows, std::int64_t row,
                                          std::int64_t col) {
  if (rows.index != nullptr) row = rows.index[row];
  if (row < 0 || row >= rows.count) return 0;
  return widen(static_cast<const T*>(rows.rows.data)[row * rows.rows.stride + col]);
}

template <class T>
__device__ __forceinline__ A<T> factor_at(const void* factors, std::int64_t row) {
  return factors == nullptr ? A<T>{1} : static_cast<const A<T>*>(factors)[row];
}

// Stores a number, or adds it to what is there: of T, or of sums' own dtype.
template <class T>
__device__ __forceinline__ void write(void* data, std::int64_t at, A<T> number, bool is_wide,
                                      bool accumulates) {
  const auto put = [&]<class Out>(Out& to) {
    to = narrow<Out>(accumulates ? widen(to) + number : number);
  };
  if (is_wide) {
    put(static_cast<A<T>*>(data)[at]);
  } else {
    put(static_cast<T*>(data)[at]);
  }
}

// Out: T, or that of the sums.
template <class T, class Out>
__global__ void __launch_bounds__(kPlainThreads) grouped_product(const GroupedProduct p) {
  constexpr bool kIsWide = !std::is_same_v<T, Out>;
  const std::int64_t col_tiles = (p.cols + kPlainTile - 1) / kPlainTile;
  const RowBlocks blocks{p.groups.offsets, p.groups.count, p.groups.rows, kPlainTile};
  const auto [group, first] = blocks[blockIdx.x / col_tiles];
  const std::int64_t row = std::int64_t{p.groups.offsets[group]} + first;
  const std::int64_t col = blockIdx.x % col_tiles * kPlainTile;
  const std::int64_t rows = p.groups.offsets[group + 1] - row;
  if (rows <= 0) return;
  const T* const b = static_cast<const T*>(p.b.first.data) + group * p.b.step;
  plain_tile<A<T>>(
      p.terms,
      [&](int at, std::int64_t k) { return at < rows ? number_at<T>(p.a, row + at, k) : A<T>{0}; },
      [&](std::int64_t k, int at) {
        if (col + at >= p.cols) return A<T>{0};
        return widen(b[k * p.b.first.row_step + (col + at) * p.b.first.col_step]);
      },
      [&](int r, int c, A<T> sum) {
        if (r >= rows || col + c >= p.cols) return;
        if (p.bias != nullptr) {
          const std::int64_t at = group * p.cols + col + c;
          sum += p.bias_dtype == p.dtype ? widen(static_cast<const T*>(p.bias)[at])
                                         : A<T>{static_cast<const A<T>*>(p.bias)[at]};
        }
        write<T>(p.out.data, (row + r) * p.out.stride + col + c,
                 sum * factor_at<T>(p.factors, row + r), kIsWide, p.accumulates);
      });
}

template <class T, class Out>
void launch_product(const Context& context, const GroupedProduct& p) {
  const RowBlocks blocks{p.groups.offsets, p.groups.count, p.groups.rows, kPlainTile};
  const std::int64_t tiles = blocks.count() * divide_up(p.cols, std::int64_t{kPlainTile});
  if (tiles == 0) return;
  launch(p.op, context, {.ctas = tiles, .threads = kPlainThreads}, grouped_product<T, Out>, p);
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads) grouped_gradient(const GroupedGradient p) {
  const std::int64_t col_tiles = (p.cols + kPlainTile - 1) / kPlainTile;
  const std::int64_t tiles = (p.rows + kPlainTile - 1) / kPlainTile * col_tiles;
  const std::int64_t group = blockIdx.x / tiles;
  const std::int64_t row = blockIdx.x % tiles / col_tiles * kPlainTile;
  const std::int64_t col = blockIdx.x % col_tiles * kPlainTile;
  const std::int64_t first = p.groups.offsets[group];
  plain_tile<A<T>>(
      p.groups.offsets[group + 1] - first,
      [&](int at, std::int64_t k) {
        if (row + at >= p.rows) return A<T>{0};
        return number_at<T>(p.a, first + k, row + at) * factor_at<T>(p.factors, first + k);
      },
      [&](std::int64_t k, int at) {
        return col + at < p.cols ? number_at<T>(p.b, first + k, col + at) : A<T>{0};
      },
      [&](int r, int c, A<T> sum) {
        if (row + r >= p.rows || col + c >= p.cols) return;
        write<T>(p.out.first.data,
                 group * p.out.step + (row + r) * p.out.first.row_step +
                     (col + c) * p.out.first.col_step,
                 sum, p.out_dtype != p.dtype, p.accumulates);
      });
}

constexpr int kSumCols = 32;
constexpr int kSumRows = 8;

// A CTA sums 32 columns of a group, each warp every eighth row.
template <class T>
__global__ void __launch_bounds__(kSumCols* kSumRows) grouped_sums(const GroupedBiasGradient p) {
  __shared__ A<T> sums[kSumRows][kSumCols];
  const std::int64_t col_tiles = (p.cols + kSumCols - 1) / kSumCols;
  const std::int64_t group = blockIdx.x / col_tiles;
  const std::int64_t col = blockIdx.x % col_tiles * kSumCols + threadIdx.x;
  const std::int64_t end = p.groups.offsets[group + 1];
  A<T> sum = 0;
  for (std::int64_t row = p.groups.offsets[group] + threadIdx.y; row < end; row += kSumRows) {
    if (col < p.cols) sum += number_at<T>(p.a, row, col) * factor_at<T>(p.factors, row);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= p.cols) return;
  for (int i = 1; i < kSumRows; ++i) sum += sums[i][threadIdx.x];
  write<T>(p.dbias, group * p.cols + col, sum, p.bias_dtype != p.dtype, p.accumulates);
}

constexpr int kRowThreads = 128;

// A CTA's row, from the sums da.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    differentiate_gate(const GroupedDgatedProblem p, const A<T>* da) {
  __shared__ A<T> parts[kRowThreads / 32];
  const std::int64_t row = blockIdx.x;
  const std::int64_t cols = p.product.cols;
  if (row >= p.product.groups.offsets[p.product.groups.count]) return;
  const A<T> factor = factor_at<T>(p.factors, row);
  const auto at = [&](const Rows& rows, std::int64_t col) -> T& {
    return static_cast<T*>(rows.data)[row * rows.stride + col];
  };
  A<T> dot = 0;
  for (std::int64_t col = threadIdx.x; col < cols; col += kRowThreads) {
    const A<T> sum = da[row * cols + col];
    const A<T> up = widen(at(p.up, col));
    const auto f = activated<T>(p.activation, widen(at(p.gate, col)));
    dot += sum * f.value * up;
    at(p.dgate, col) = narrow<T>(factor * sum * up * f.slope);
    at(p.dup, col) = narrow<T>(factor * sum * f.value);
    if (p.h.data != nullptr) at(p.h, col) = narrow<T>(factor * f.value * up);
  }
  if (p.dfactors == nullptr) return;
  for (int lanes = 16; lanes > 0; lanes /= 2) dot += __shfl_xor_sync(~0u, dot, lanes);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = dot;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kRowThreads / 32; ++i) dot += parts[i];
  static_cast<A<T>*>(p.dfactors)[row] = dot;
}

}  // namespace
}  // namespace groups

using namespace groups;

template <class T>
void run_plain(const Context& context, const GroupedProduct& p) {
  launch_product<T, T>(context, p);
}

template <class T>
void run_plain(const Context& context, const GroupedGradient& p) {
  constexpr std::int64_t kSide = kPlainTile;
  const std::int64_t tiles = divide_up(p.rows, kSide) * divide_up(p.cols, kSide);
  if (tiles * p.groups.count == 0) return;
  launch(p.op, context, {.ctas = tiles * p.groups.count, .threads = kPlainThreads},
         grouped_gradient<T>, p);
}

template <class T>
void run_plain(const Context& context, const GroupedBiasGradient& p) {
  const std::int64_t ctas = divide_up(p.cols, std::int64_t{kSumCols}) * p.groups.count;
  if (ctas == 0) return;
  launch(p.op, context, {.ctas = ctas, .threads = kSumCols, .threads_y = kSumRows}, grouped_sums<T>,
         p);
}

template <class T>
void run_plain(const Context& context, const GroupedDgatedProblem& p) {
  GroupedProduct da = p.product;
  const Scratch memory(da.op, context, da.groups.rows * da.cols * sizeof(A<T>));
  da.out = {memory.as<void>(), da.cols};
  launch_product<T, A<T>>(context, da);
  launch(da.op, context, {.ctas = da.groups.rows, .threads = kRowThreads}, differentiate_gate<T>, p,
         static_cast<const A<T>*>(memory.as<A<T>>()));
}

template void run_plain<TFK_TYPE>(const Context& context, const GroupedProduct& p);
template void run_plain<TFK_TYPE>(const Context& context, const GroupedGradient& p);
template void run_plain<TFK_TYPE>(const Context& context, const GroupedBiasGradient& p);
template void run_plain<TFK_TYPE>(const Context& context, const GroupedDgatedProblem& p);

}  // namespace transformer_kernels::cuda
