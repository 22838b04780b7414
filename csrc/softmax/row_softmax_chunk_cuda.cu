// SPDX-License-Identifier: MIT
#include "softmax/row_softmax_chunk.h"

#include "core/cuda/chunk_launch.cuh"
#include "core/select.h"
#include "softmax/row_softmax_chunk.cuh"

namespace transformer_kernels::cuda {
namespace {

// A row of a plan table as a type: what a kernel takes as its template argument.
template <std::size_t kIndex>
struct ForwardPlan {
  static constexpr ChunkPlan plan = kSoftmaxForwardChunks[kIndex];
};
template <std::size_t kIndex>
struct BackwardPlan {
  static constexpr ChunkPlan plan = kSoftmaxBackwardChunks[kIndex];
};

template <class T, bool kLog, class Plan>
auto kernel_for(const SoftmaxForwardProblem&) {
  return &softmax_forward_chunk_kernel<T, kLog, Plan>;
}
template <class T, bool kLog, class Plan>
auto kernel_for(const SoftmaxBackwardProblem&) {
  return &softmax_backward_chunk_kernel<T, kLog, Plan>;
}

template <template <std::size_t> class PlanAt, std::size_t kPlans, class Problem>
bool run_in_chunks(const char* op, const ChunkPlan (&plans)[kPlans], const Context& context,
                   const Problem& problem) {
  const DeviceLimits& device = device_limits(context.device.index);
  const auto chosen = find_kernel(op, plans, problem, [&](const ChunkPlan& plan) {
    return softmax_chunk_refusal(plan, problem, device);
  });
  if (!chosen) return false;
  const ChunkLoad load = chunk_load(problem);
  const ChunkShape shape = chunk_shape(plans[*chosen], load);
  const LaunchShape launch_shape = chunk_launch(plans[*chosen], shape, load, device);
  dispatch_index<kPlans>(*chosen, [&]<std::size_t kIndex>() {
    using Plan = PlanAt<kIndex>;
    dispatch_chunk_type<Plan>(problem.dtype, [&]<class T>() {
      dispatch_bool(problem.log, [&]<bool kLog>() {
        launch(op, context, launch_shape, kernel_for<T, kLog, Plan>(problem),
               SoftmaxChunkCall<Problem>{problem, shape});
      });
    });
  });
  return true;
}

}  // namespace

bool softmax_forward_in_chunks(const char* op, const Context& context,
                               const SoftmaxForwardProblem& problem) {
  return run_in_chunks<ForwardPlan>(op, kSoftmaxForwardChunks, context, problem);
}

bool softmax_backward_in_chunks(const char* op, const Context& context,
                                const SoftmaxBackwardProblem& problem) {
  return run_in_chunks<BackwardPlan>(op, kSoftmaxBackwardChunks, context, problem);
}

}  // namespace transformer_kernels::cuda
