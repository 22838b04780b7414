// SPDX-License-Identifier: MIT
#include <utility>

#include "core/cuda/launch.cuh"
#include "core/dispatch.h"
#include "core/select.h"
#include "softmax/row_softmax_backward.cuh"
#include "softmax/row_softmax_chunk.h"
#include "softmax/row_softmax_direct.cuh"
#include "softmax/row_softmax_forward.cuh"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "softmax";

// A row of a plan table as a type: what a kernel takes as its template argument.
template <std::size_t kIndex>
struct ForwardPlan {
  static constexpr SoftmaxPlan kEntry = kSoftmaxForwardPlans[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};
template <std::size_t kIndex>
struct BackwardPlan {
  static constexpr SoftmaxPlan kEntry = kSoftmaxBackwardPlans[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};

template <class Plan, class Problem>
void launch_rows(const Context& context, void (*kernel)(Problem), const Problem& problem) {
  const LaunchShape shape{
      .ctas = divide_up(problem.rows, Plan::plan.rows) * Plan::plan.cluster,
      .threads = Plan::plan.cta_threads(),
      .cluster = Plan::plan.cluster,
      .shared_bytes = static_cast<std::size_t>(staged_bytes(Plan::plan, row_load(problem)))};
  launch(kOp, context, shape, kernel, problem);
}

template <class Plan, class T>
void run(const Context& context, const SoftmaxForwardProblem& problem) {
  dispatch_bool(problem.masked(), [&]<bool kMasked>() {
    if constexpr (!(kMasked && Plan::plan.shifted)) {
      launch_rows<Plan>(context, &softmax_forward_kernel<T, kMasked, Plan>, problem);
    }
  });
}

template <class Plan, class T>
void run(const Context& context, const SoftmaxBackwardProblem& problem) {
  launch_rows<Plan>(context, &softmax_backward_kernel<T, Plan>, problem);
}

// Runs the first plan of the table that takes the problem.
template <template <std::size_t> class PlanAt, std::size_t kPlans, class Problem>
void run_best_plan(const SoftmaxPlan (&plans)[kPlans], const Context& context,
                   const Problem& problem) {
  const DeviceLimits& device = device_limits(context.device.index);
  const std::size_t chosen = choose(kOp, plans, problem, [&](const SoftmaxPlan& plan) {
    return softmax_refusal(plan, problem, device);
  });
  dispatch_index<kPlans>(chosen, [&]<std::size_t kIndex>() {
    using Plan = PlanAt<kIndex>;
    dispatch_float(problem.dtype, [&]<class T>() {
      if constexpr (std::holds_alternative<DirectPlan>(Plan::kEntry.plan)) {
        if constexpr (!std::is_same_v<T, double>) {
          launch_softmax_direct<T, Plan>(kOp, context, problem);
        }
      } else if constexpr (!std::is_same_v<T, double> || !Plan::plan.wide) {
        run<Plan, T>(context, problem);
      }
    });
  });
}

}  // namespace

void softmax_forward(const Context& context, const SoftmaxForwardProblem& problem) {
  if (softmax_forward_in_chunks(kOp, context, problem)) return;
  run_best_plan<ForwardPlan>(kSoftmaxForwardPlans, context, problem);
}

void softmax_backward(const Context& context, const SoftmaxBackwardProblem& problem) {
  if (softmax_backward_in_chunks(kOp, context, problem)) return;
  run_best_plan<BackwardPlan>(kSoftmaxBackwardPlans, context, problem);
}

}  // namespace transformer_kernels::cuda
