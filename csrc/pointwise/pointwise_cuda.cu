// SPDX-License-Identifier: MIT
#include <utility>

#include "core/cuda/column_sum.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "pointwise/pointwise_backward.cuh"
#include "pointwise/pointwise_forward.cuh"

namespace transformer_kernels::cuda {
namespace {

LaunchShape shape_of(const Context& context, const PointwiseGrid& grid) {
  return {.ctas = grid.column_blocks,
          .threads = grid.threads,
          .threads_y = grid.threads_y,
          .ctas_y = grid.ctas_y(),
          .ctas_z = grid.ctas_z(),
          .after_previous = device_limits(context.device.index).architecture >= 90};
}

bool has_packs(const PointwiseForwardProblem& p) {
  return packs_fit(p.dtype, p.rows, {p.x, p.up, p.y}, {p.bias, p.up_bias});
}
bool has_packs(const PointwiseBackwardProblem& p) {
  return packs_fit(p.dtype, p.rows, {p.dy, p.x, p.up, p.dx, p.dup, p.y}, {p.bias, p.up_bias});
}

// Calls body.operator()<T, kSize, Op>(), kSize the elements of a pack.
template <class Problem, class Body>
void dispatch_pointwise(const Problem& p, Body&& body) {
  const bool packs = has_packs(p);
  if (log_dispatch()) {
    log_line(concat(name_of(p.op), " ", describe(p), ": ", packs ? "packs" : "elements", " run"));
  }
  dispatch_index<kPointwiseCount>(static_cast<std::size_t>(p.op), [&]<std::size_t kIndex>() {
    using Op = PointwiseOp<static_cast<Pointwise>(kIndex)>;
    dispatch_float(p.dtype, [&]<class T>() {
      if constexpr (!std::is_same_v<T, double>) {
        if (packs) return body.template operator()<T, 16 / sizeof(T), Op>();
      }
      body.template operator()<T, 1, Op>();
    });
  });
}

// Of one bias as well as of two: partial sums of both lie side by side.
template <class T, int kSize, class Op>
void backward_with_bias(const Context& context, const PointwiseBackwardProblem& p) {
  using A = accumulate_t<T>;
  const char* const op = name_of(p.op);
  const std::int64_t packs = divide_up(p.cols, kSize);
  const auto rows_per_thread = static_cast<int>(rows_per_sum(p.rows, packs));
  const PointwiseGrid grid = pointwise_grid(p.rows, packs, rows_per_thread);
  const std::int64_t pitch = rounded_up(p.cols, 4);
  const bool sums = p.dbias != nullptr || p.dup_bias != nullptr;
  const Scratch partial(op, context, sums ? grid.row_blocks * 2 * pitch * sizeof(A) : 0);
  if (p.rows > 0) {
    launch(op, context, shape_of(context, grid), &pointwise_backward_bias_kernel<T, kSize, Op>, p,
           BiasSums<A>{sums ? partial.as<A>() : nullptr, pitch, rows_per_thread});
  }
  if (!sums) return;
  sum_columns(op, context, p.bias_dtype,
              PartialGradients<A>{partial.as<A>(), static_cast<int>(grid.row_blocks), pitch, p.cols,
                                  p.dbias, p.dup_bias},
              p.rows > 0 && device_limits(context.device.index).architecture >= 90);
}

}  // namespace

// Kernels for single elements, which only operands that are not aligned need, come with a bias
// alone: an absent one changes nothing.
void pointwise_forward(const Context& context, const PointwiseForwardProblem& p) {
  dispatch_pointwise(p, [&]<class T, int kSize, class Op>() {
    dispatch_bool(kSize == 1 || p.has_bias(), [&]<bool kBias>() {
      if constexpr (kSize > 1 || kBias) {
        const PointwiseGrid grid =
            pointwise_grid(p.rows, divide_up(p.cols, kSize), kBias ? kPointwiseBiasRows : 1);
        launch(name_of(p.op), context, shape_of(context, grid),
               &pointwise_forward_kernel<T, kSize, Op, kBias>, p);
      }
    });
  });
}

void pointwise_backward(const Context& context, const PointwiseBackwardProblem& p) {
  dispatch_pointwise(p, [&]<class T, int kSize, class Op>() {
    if constexpr (kSize > 1) {
      if (!p.has_bias()) {
        const PointwiseGrid grid = pointwise_grid(p.rows, divide_up(p.cols, kSize), 1);
        return launch(name_of(p.op), context, shape_of(context, grid),
                      &pointwise_backward_kernel<T, kSize, Op>, p);
      }
    }
    backward_with_bias<T, kSize, Op>(context, p);
  });
}

}  // namespace transformer_kernels::cuda
