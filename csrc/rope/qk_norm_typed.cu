// SPDX-License-Identifier: MIT
#include <type_traits>

#include "core/cuda/column_sum.h"
#include "core/cuda/scratch.h"
#include "core/dispatch.h"
#include "rope/qk_norm_backward.cuh"
#include "rope/qk_norm_forward.cuh"
#include "rope/qk_norm_kernels.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "qk_norm";

bool may_overlap_launches(const Context& context) {
  return device_limits(context.device.index).architecture >= 90;
}

LaunchShape shape_of(const Context& context, std::int64_t ctas) {
  return {.ctas = ctas, .threads = kQkNormThreads, .after_previous = may_overlap_launches(context)};
}

template <class T, int kSize, bool kNeighbours>
void forward_packs(const Context& context, const QkNormForwardProblem& p) {
  QkNormGrid grid = qk_norm_grid(p.rope, kSize);
  const auto ctas = [&](std::int64_t heads) {
    return divide_up(p.rope.tokens() * head_groups(heads), grid.groups());
  };
  grid.q_ctas = static_cast<unsigned>(ctas(p.rope.q_heads));
  launch(kOp, context, shape_of(context, grid.q_ctas + ctas(p.rope.k_heads)),
         &qk_norm_forward_kernel<T, kSize, kNeighbours>, p, grid, table_packs_fit(p.rope.angles));
}

// Gradients of weights: rows of partial sums, which sum_columns() adds up.
template <class T, class Launch>
void backward(const Context& context, const QkNormBackwardProblem& p, std::int64_t rows,
              bool starts_at_zero, Launch&& launch_kernel) {
  using A = accumulate_t<T>;
  const std::int64_t pitch = rounded_up(p.rope.dim, 4);
  const std::size_t bytes = p.has_sums() ? rows * 2 * pitch * sizeof(A) : 0;
  const Scratch partial(kOp, context, bytes);
  const QkNormSums<A> sums{p.has_sums() ? partial.template as<A>() : nullptr, pitch};
  if (p.has_sums() && starts_at_zero) {
    check_cuda(kOp,
               cudaMemsetAsync(sums.partial, 0, bytes, static_cast<cudaStream_t>(context.stream)));
  }
  launch_kernel(sums);
  if (!p.has_sums()) return;
  sum_columns(kOp, context, p.weight_dtype,
              PartialGradients<A>{sums.partial, static_cast<int>(rows), pitch, p.rope.dim,
                                  p.dq_weight, p.dk_weight},
              false);
}

// The grid has as many CTAs for k as for q.
QkNormGrid backward_grid(const RopeProblem& p, std::int64_t size) {
  QkNormGrid grid = qk_norm_grid(p, size);
  grid.q_ctas = static_cast<unsigned>(qk_norm_ctas(p, grid));
  return grid;
}

std::int64_t sides(const RopeProblem& p) { return p.k_heads > 0 ? 2 : 1; }

template <class T, int kSize, bool kNeighbours>
void backward_packs(const Context& context, const QkNormBackwardProblem& p) {
  const QkNormGrid grid = backward_grid(p.rope, kSize);
  backward<T>(context, p, grid.q_ctas, false, [&](const auto& sums) {
    launch(kOp, context, shape_of(context, sides(p.rope) * grid.q_ctas),
           &qk_norm_backward_kernel<T, kSize, kNeighbours>, p, grid, table_packs_fit(p.rope.angles),
           sums);
  });
}

template <class Body>
void dispatch_style(const RopeProblem& p, Body&& body) {
  dispatch_bool(p.angles.interleaved && p.angles.frequencies > 0, body);
}

}  // namespace

template <class T>
void run_qk_norm(const Context& context, const QkNormForwardProblem& p, bool packs) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) {
      return dispatch_style(p.rope, [&]<bool kNeighbours>() {
        forward_packs<T, 16 / sizeof(T), kNeighbours>(context, p);
      });
    }
  }
  const QkNormGrid grid = qk_norm_grid(p.rope, 1);
  const std::int64_t rows = p.rope.tokens() * p.rope.heads();
  launch(kOp, context, shape_of(context, divide_up(rows, grid.groups())),
         &qk_norm_forward_elements_kernel<T>, p, grid);
}

template <class T>
void run_qk_norm(const Context& context, const QkNormBackwardProblem& p, bool packs) {
  if constexpr (!std::is_same_v<T, double>) {
    if (packs) {
      return dispatch_style(p.rope, [&]<bool kNeighbours>() {
        backward_packs<T, 16 / sizeof(T), kNeighbours>(context, p);
      });
    }
  }
  const QkNormGrid grid = backward_grid(p.rope, 1);
  const std::int64_t rows = std::int64_t{grid.q_ctas} * grid.groups();
  backward<T>(context, p, rows, true, [&](const auto& sums) {
    launch(kOp, context, shape_of(context, sides(p.rope) * grid.q_ctas),
           &qk_norm_backward_elements_kernel<T>, p, grid, sums);
  });
}

template void run_qk_norm<TFK_TYPE>(const Context&, const QkNormForwardProblem&, bool);
template void run_qk_norm<TFK_TYPE>(const Context&, const QkNormBackwardProblem&, bool);

}  // namespace transformer_kernels::cuda
