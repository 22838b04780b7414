// SPDX-License-Identifier: MIT
// The one-shot engine: each group of threads takes its row(s) once. Launches of both passes.
#pragma once

#include "core/cuda/launch.cuh"
#include "softmax/kernels.h"
#include "softmax/rows/backward.cuh"
#include "softmax/rows/forward.cuh"

namespace transformer_kernels::cuda {

template <class Plan, class Problem>
void launch_softmax_rows(const Context& context, void (*kernel)(Problem), const Problem& p) {
  const LaunchShape shape{
      .ctas = divide_up(p.rows, Plan::plan.rows) * Plan::plan.cluster,
      .threads = Plan::plan.cta_threads(),
      .cluster = Plan::plan.cluster,
      .shared_bytes = static_cast<std::size_t>(staged_bytes(Plan::plan, row_load(p)))};
  launch("softmax", context, shape, kernel, p);
}

template <class T, class Plan>
void run_softmax_plan(const Context& context, const SoftmaxForwardProblem& p) {
  dispatch_bool(p.masked(), [&]<bool kMasked>() {
    if constexpr (!(kMasked && Plan::plan.shifted)) {
      launch_softmax_rows<Plan>(context, &softmax_forward_kernel<T, kMasked, Plan>, p);
    }
  });
}

template <class T, class Plan>
void run_softmax_plan(const Context& context, const SoftmaxBackwardProblem& p) {
  launch_softmax_rows<Plan>(context, &softmax_backward_kernel<T, Plan>, p);
}

template <class T, auto kRuns, class Problem>
void run_softmax_oneshot(const Context& context, const Problem& p, std::size_t plan) {
  dispatch_softmax<kRuns>(p, plan, [&]<class Plan>() {
    if constexpr (!std::is_same_v<T, double> || moves_single_elements(Plan::kEntry)) {
      run_softmax_plan<T, Plan>(context, p);
    }
  });
}

template <class T, class Problem>
void run_softmax_rows(const Context& context, const Problem& p, std::size_t plan) {
  run_softmax_oneshot<T, is_rows_softmax>(context, p, plan);
}

template <class T, class Problem>
void run_softmax_bulk(const Context& context, const Problem& p, std::size_t plan) {
  run_softmax_oneshot<T, is_bulk_softmax>(context, p, plan);
}

}  // namespace transformer_kernels::cuda
