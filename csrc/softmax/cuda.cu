// SPDX-License-Identifier: MIT
// The choice between the CUDA engines of softmax.
#include "core/cuda/built.h"
#include "core/cuda/device.h"
#include "core/select.h"
#include "softmax/kernels.h"
#include "softmax/problem.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "softmax";

template <class Problem>
void run_best(const Context& context, const Problem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  if constexpr (kBuildsSm90a) {
    const auto chunk = find_kernel(kOp, kSoftmaxChunks<Problem>, p, [&](const ChunkPlan& plan) {
      return chunk_refusal(plan, p, device);
    });
    if (chunk) {
      return dispatch_below_double(p.dtype,
                                   [&]<class T>() { run_softmax_chunk<T>(context, p, *chunk); });
    }
  }
  const std::size_t plan = choose(kOp, kSoftmaxPlans<Problem>, p, [&](const SoftmaxPlan& entry) {
    return softmax_refusal(entry, p, device);
  });
  const SoftmaxPlan& entry = kSoftmaxPlans<Problem>[plan];
  if (is_rows_softmax(entry)) {
    return dispatch_float(p.dtype, [&]<class T>() { run_softmax_rows<T>(context, p, plan); });
  }
  dispatch_below_double(p.dtype, [&]<class T>() {
    if (is_direct_softmax(entry)) return run_softmax_direct<T>(context, p, plan);
    if constexpr (kBuildsSm90) run_softmax_bulk<T>(context, p, plan);
  });
}

}  // namespace

void softmax_forward(const Context& context, const SoftmaxForwardProblem& p) {
  run_best(context, p);
}

void softmax_backward(const Context& context, const SoftmaxBackwardProblem& p) {
  run_best(context, p);
}

}  // namespace transformer_kernels::cuda
