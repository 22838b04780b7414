// SPDX-License-Identifier: MIT
// The plain engine, backward pass of the norms on any architecture, alignment, width and dtype, in
// three kernels: dx row by row, the parameter gradients column by column over chunks of rows, and
// the sum of the chunks. x and dy are read three times, the second and third time mostly from the
// caches.
#pragma once

#include "core/cuda/column_sum.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/row.cuh"
#include "core/cuda/scratch.h"
#include "norm/kernels.h"

namespace transformer_kernels::cuda {

// A CTA a row (or a warp, where rows are narrow), single elements.
struct PlainBackwardRows {
  static constexpr RowPlan plan{256, 1, 1, 0, 1, false, false, false};
};
struct PlainBackwardNarrowRows {
  static constexpr RowPlan plan{32, 8, 1, 0, 1, false, false, false};
};

template <class V>
struct GradientSums {
  V g;   // sum of dy * w
  V gx;  // sum of dy * w * xhat
};

template <class T, class Plan>
__global__ void __launch_bounds__(Plan::plan.cta_threads())
    norm_backward_rows_kernel(const __grid_constant__ NormBackwardProblem p) {
  using V = accumulate_t<T>;
  using Index = typename Row<Plan, T>::Index;
  __shared__ RowScratch<Plan, GradientSums<V>> scratch;
  const Row<Plan, T> row(p.rows, p.cols);
  if (!row.inside) return;
  const auto at = [&](const Rows& m) { return static_cast<T*>(m.data) + row.index * m.stride; };
  const T* x = at(p.x);
  const T* dy = at(p.dy);
  const V mean = p.center ? static_cast<const V*>(p.mean)[row.index] : V(0);
  const V rstd = static_cast<const V*>(p.rstd)[row.index];
  const V offset = p.zero_centered_weight ? V(1) : V(0);
  // Rounded as a number of its own: fused into a later sum, it would not cancel against its mean in
  // a row of one element.
  const auto g_of = [&](Index col) {
    V weight = V(1) - offset;
    if (p.weight != nullptr) {
      weight = has_float_parameters<T>(p) ? static_cast<V>(static_cast<const float*>(p.weight)[col])
                                          : widen(static_cast<const T*>(p.weight)[col]);
    }
    return product(widen(dy[col]), weight + offset);
  };
  const auto xhat_of = [&](Index col) { return (widen(x[col]) - mean) * rstd; };

  GradientSums<V> sums{V(0), V(0)};
  row.for_each_pack([&](int, Index col) {
    const V g = g_of(col);
    if (p.center) sums.g += g;
    sums.gx += g * xhat_of(col);
  });
  sums = {reduce_lanes<Add>(sums.g), reduce_lanes<Add>(sums.gx)};
  constexpr int kWarps = Plan::plan.warps();
  if constexpr (kWarps > 1) {
    const GradientSums<V> part = share_in_group(row, scratch, sums)[threadIdx.x % kWarps];
    sums = {reduce_lanes<Add, kWarps>(part.g), reduce_lanes<Add, kWarps>(part.gx)};
  }
  const V inverse = reciprocal(static_cast<V>(p.cols));
  const T* dsum = p.dsum.data ? at(p.dsum) : nullptr;
  T* dx = at(p.dx);
  row.for_each_pack([&](int, Index col) {
    V v = rstd * (g_of(col) - sums.g * inverse - xhat_of(col) * (sums.gx * inverse));
    if (dsum) v += widen(dsum[col]);
    dx[col] = narrow<T>(v);
  });
}

template <class V>
struct ColumnsLaunch {
  NormBackwardProblem problem;
  std::int64_t chunk_rows;
  V* partial;  // [chunks][2][pitch]
  std::int64_t pitch;
};

inline constexpr int kColumnThreads = 128;

// Thread t of CTA (b, c) sums column b * kColumnThreads + t over the rows of chunk c.
template <class T>
__global__ void __launch_bounds__(kColumnThreads)
    norm_backward_columns_kernel(const ColumnsLaunch<accumulate_t<T>> a) {
  using V = accumulate_t<T>;
  const NormBackwardProblem& p = a.problem;
  const std::int64_t blocks = divide_up(p.cols, kColumnThreads);
  const std::int64_t chunk = blockIdx.x / blocks;
  const std::int64_t col = blockIdx.x % blocks * kColumnThreads + threadIdx.x;
  if (col >= p.cols) return;
  const std::int64_t begin = chunk * a.chunk_rows;
  const std::int64_t end = min(begin + a.chunk_rows, p.rows);
  V dweight = 0, dbias = 0;
#pragma unroll 4
  for (std::int64_t row = begin; row < end; ++row) {
    const V dy = widen(static_cast<const T*>(p.dy.data)[row * p.dy.stride + col]);
    dbias += dy;
    if (p.dweight == nullptr) continue;
    const V x = widen(static_cast<const T*>(p.x.data)[row * p.x.stride + col]);
    const V mean = p.center ? static_cast<const V*>(p.mean)[row] : V(0);
    dweight += dy * ((x - mean) * static_cast<const V*>(p.rstd)[row]);
  }
  V* out = a.partial + chunk * 2 * a.pitch + col;
  out[0] = dweight;
  out[a.pitch] = dbias;
}

// Chunks depend on the shape alone, not on the device, so that sums are the same on every card.
inline std::int64_t column_chunks(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kCtas = 1024;
  const std::int64_t blocks = std::max<std::int64_t>(1, divide_up(cols, kColumnThreads));
  return std::clamp<std::int64_t>(divide_up(rows, 32), 1,
                                  std::max<std::int64_t>(1, kCtas / blocks));
}

// The parameter gradients that `p` wants.
template <class T>
void launch_norm_backward_columns(const Context& context, const NormBackwardProblem& p) {
  using V = accumulate_t<T>;
  const std::int64_t chunks = column_chunks(p.rows, p.cols);
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const Scratch scratch(p.op, context, chunks * 2 * pitch * sizeof(V));
  const ColumnsLaunch<V> columns{p, divide_up(p.rows, chunks), scratch.as<V>(), pitch};
  const LaunchShape shape{.ctas = chunks * divide_up(p.cols, kColumnThreads),
                          .threads = kColumnThreads};
  launch(p.op, context, shape, &norm_backward_columns_kernel<T>, columns);
  sum_columns(p.op, context, p.weight_dtype,
              PartialGradients<V>{scratch.as<V>(), static_cast<int>(chunks), pitch, p.cols,
                                  p.dweight, p.dbias},
              false);
}

template <class T>
void launch_norm_backward_rows(const Context& context, const NormBackwardProblem& p) {
  constexpr std::int64_t kNarrow = 512;
  const auto run = [&]<class Plan>() {
    const LaunchShape shape{.ctas = divide_up(p.rows, Plan::plan.rows),
                            .threads = Plan::plan.cta_threads()};
    launch(p.op, context, shape, &norm_backward_rows_kernel<T, Plan>, p);
  };
  if (p.cols <= kNarrow) {
    run.template operator()<PlainBackwardNarrowRows>();
  } else {
    run.template operator()<PlainBackwardRows>();
  }
}

template <class T>
void run_norm_backward_plain(const Context& context, const NormBackwardProblem& p) {
  if (p.cols == 0) return;
  // The parameter gradients first: dx may be dy's memory.
  if (p.dweight != nullptr || p.dbias != nullptr) launch_norm_backward_columns<T>(context, p);
  if (p.rows > 0) launch_norm_backward_rows<T>(context, p);
}

template <class T>
void sum_norm_bias_gradient(const Context& context, const NormBackwardProblem& p) {
  NormBackwardProblem bias_alone = p;
  bias_alone.dweight = nullptr;
  launch_norm_backward_columns<T>(context, bias_alone);
}

}  // namespace transformer_kernels::cuda
