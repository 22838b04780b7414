// SPDX-License-Identifier: MIT
#include <type_traits>

#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "pointwise/dropout.cuh"
#include "pointwise/dropout_kernels.h"
#include "pointwise/launch.cuh"

namespace transformer_kernels::cuda {
namespace {

// Calls body.operator()<kPacks>(). There are no packs of double.
template <class T, class Body>
void dispatch_packs(bool packs, Body&& body) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) return body.template operator()<true>();
  }
  body.template operator()<false>();
}

// The number of threads of a row; `together` neighbouring threads draw for each other.
template <class Eight>
struct ThreadsOfRow {
  static constexpr int together = Eight::kParts;
  std::int64_t count;

  explicit ThreadsOfRow(std::int64_t cols)
      : count(divide_up(Eight::kParts == 1 ? cols : Eight::distance(cols), Eight::kSize)) {}
};

template <class T, bool kPacks>
void drop(const Context& context, const DropoutBackwardProblem& p) {
  const ThreadsOfRow<DropoutEight<T, kPacks>> threads(p.cols);
  const PointwiseGrid grid = pointwise_grid(p.rows, threads.count, 1, threads.together);
  launch(p.op, context, shape_of(context, grid), &dropout_kernel<T, kPacks>, p);
}

template <class T, bool kPacks>
void drop_with_sums(const Context& context, const DropoutBackwardProblem& p) {
  using A = accumulate_t<T>;
  using Eight = DropoutEight<T, kPacks>;
  const ThreadsOfRow<Eight> threads(p.cols);
  const auto rows_per_thread =
      static_cast<int>(rows_per_sum(p.rows, threads.count, threads.together));
  const PointwiseGrid grid =
      pointwise_grid(p.rows, threads.count, rows_per_thread, threads.together);
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const Scratch partial(p.op, context, grid.row_blocks * 2 * pitch * sizeof(A));
  if (p.rows > 0) {
    launch(p.op, context, shape_of(context, grid), &dropout_sums_kernel<T, kPacks>, p,
           BiasSums<A>{partial.template as<A>(), pitch, rows_per_thread});
  }
  sum_columns(p.op, context, p.bias_dtype,
              PartialGradients<A>{partial.template as<A>(), static_cast<int>(grid.row_blocks),
                                  pitch, p.cols, p.dbias, nullptr},
              p.rows > 0 && may_overlap_launches(context));
}

}  // namespace

// Kernels for single elements come with a bias alone: an absent one changes nothing.
template <class T>
void run_dropout(const Context& context, const DropoutForwardProblem& p, bool packs) {
  dispatch_packs<T>(packs, [&]<bool kPacks>() {
    if (p.residual.data == nullptr) {
      return drop<T, kPacks>(context, {.op = p.op,
                                       .dtype = p.dtype,
                                       .bias_dtype = p.dtype,
                                       .rows = p.rows,
                                       .cols = p.cols,
                                       .dy = p.x,
                                       .dx = p.y,
                                       .dbias = nullptr,
                                       .draw = p.draw});
    }
    const ThreadsOfRow<DropoutEight<T, kPacks>> threads(p.cols);
    const PointwiseGrid grid = pointwise_grid(p.rows, threads.count, 1, threads.together);
    dispatch_bool(!kPacks || p.bias != nullptr, [&]<bool kBias>() {
      if constexpr (kPacks || kBias) {
        launch(p.op, context, shape_of(context, grid), &bias_dropout_add_kernel<T, kPacks, kBias>,
               p);
      }
    });
  });
}

template <class T>
void run_dropout(const Context& context, const DropoutBackwardProblem& p, bool packs) {
  dispatch_packs<T>(packs, [&]<bool kPacks>() {
    if (p.dbias != nullptr) return drop_with_sums<T, kPacks>(context, p);
    drop<T, kPacks>(context, p);
  });
}

template void run_dropout<TFK_TYPE>(const Context&, const DropoutForwardProblem&, bool);
template void run_dropout<TFK_TYPE>(const Context&, const DropoutBackwardProblem&, bool);

}  // namespace transformer_kernels::cuda
