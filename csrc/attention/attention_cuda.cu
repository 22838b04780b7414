// SPDX-License-Identifier: MIT
#include "attention/plain.h"
#include "attention/tensor_core.h"
#include "core/check.h"
#include "core/select.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "attention";

const AttentionEngine<AttentionForwardProblem>* const kForwardEngines[] = {&kTensorCoreForward,
                                                                           &kPlainForward};
const AttentionEngine<AttentionBackwardProblem>* const kBackwardEngines[] = {&kTensorCoreBackward,
                                                                             &kPlainBackward};

template <std::size_t kEngines, class Problem>
void run_best(const AttentionEngine<Problem>* const (&engines)[kEngines], const Context& context,
              const Problem& problem) {
  constexpr std::int64_t kMostRows = 0x7fffffff;
  check_value(problem.queries <= kMostRows && problem.keys <= kMostRows, kOp,
              ": a sequence has more than ", kMostRows, " rows, which CUDA kernels do not take");
  const DeviceLimits& device = device_limits(context.device.index);
  const std::size_t chosen = choose(
      kOp, engines, problem, [&](const auto* engine) { return engine->refusal(problem, device); });
  engines[chosen]->run(context, problem);
}

}  // namespace

void attention_forward(const Context& context, const AttentionForwardProblem& problem) {
  run_best(kForwardEngines, context, problem);
}

void attention_backward(const Context& context, const AttentionBackwardProblem& problem) {
  run_best(kBackwardEngines, context, problem);
}

}  // namespace transformer_kernels::cuda
