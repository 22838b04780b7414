// SPDX-License-Identifier: MIT
#include <type_traits>

#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "pointwise/backward.cuh"
#include "pointwise/forward.cuh"
#include "pointwise/kernels.h"
#include "pointwise/launch.cuh"

namespace transformer_kernels::cuda {
namespace {

// Calls body.operator()<kSize, Op>(), kSize the elements of a pack. There are no packs of double.
template <class T, class Body>
void dispatch_pointwise(Pointwise op, bool packs, Body&& body) {
  dispatch_index<kPointwiseCount>(static_cast<std::size_t>(op), [&]<std::size_t kIndex>() {
    using Op = PointwiseOp<static_cast<Pointwise>(kIndex)>;
    if constexpr (!std::is_same_v<T, double>) {
      if (packs) return body.template operator()<16 / sizeof(T), Op>();
    }
    body.template operator()<1, Op>();
  });
}

// The backward pass with one bias or two: the partial sums of both lie side by side.
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
           BiasSums<A>{sums ? partial.template as<A>() : nullptr, pitch, rows_per_thread});
  }
  if (!sums) return;
  sum_columns(op, context, p.bias_dtype,
              PartialGradients<A>{partial.template as<A>(), static_cast<int>(grid.row_blocks),
                                  pitch, p.cols, p.dbias, p.dup_bias, p.accumulates_dbias},
              p.rows > 0 && may_overlap_launches(context));
}

}  // namespace

// Kernels for single elements, which only operands that are not aligned need, come with a bias
// alone: an absent one changes nothing.
template <class T>
void run_pointwise(const Context& context, const PointwiseForwardProblem& p, bool packs) {
  dispatch_pointwise<T>(p.op, packs, [&]<int kSize, class Op>() {
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

template <class T>
void run_pointwise(const Context& context, const PointwiseBackwardProblem& p, bool packs) {
  dispatch_pointwise<T>(p.op, packs, [&]<int kSize, class Op>() {
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

template void run_pointwise<TFK_TYPE>(const Context&, const PointwiseForwardProblem&, bool);
template void run_pointwise<TFK_TYPE>(const Context&, const PointwiseBackwardProblem&, bool);

}  // namespace transformer_kernels::cuda
