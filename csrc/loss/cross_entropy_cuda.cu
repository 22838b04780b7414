// SPDX-License-Identifier: MIT
// The choice between the CUDA engines of cross-entropy.
#include "core/cuda/built.h"
#include "core/cuda/device.h"
#include "core/cuda/scratch.h"
#include "core/select.h"
#include "loss/cross_entropy_kernels.h"

namespace transformer_kernels::cuda {
namespace {

constexpr const char* kOp = "cross_entropy";

template <bool kGradient>
void run_rows(const Context& context, const LossCall& call) {
  const CrossEntropyForwardProblem& p = call.p;
  const DeviceLimits& device = device_limits(context.device.index);
  const auto& plans = kCrossEntropyPlans<kGradient>;
  const std::size_t plan = choose(kOp, plans, p, [&](const CrossEntropyPlan& entry) {
    return cross_entropy_refusal(entry, p, device);
  });
  if (!plans[plan].plan.needs_sm90()) {
    return dispatch_float(p.dtype,
                          [&]<class T>() { run_loss_rows<T, kGradient>(context, call, plan); });
  }
  if constexpr (kBuildsSm90) {
    dispatch_below_double(p.dtype,
                          [&]<class T>() { run_loss_bulk<T, kGradient>(context, call, plan); });
  }
}

}  // namespace

// Runs the rows, then their sums. A mean's gradient needs the sum of the rows' weights first.
void cross_entropy_forward(const Context& context, const CrossEntropyForwardProblem& p) {
  const bool reduces = p.reduction != Reduction::kNone;
  const bool mean = p.reduction == Reduction::kMean;
  const std::size_t bytes = size_of(accumulate_dtype(p.dtype));
  const Scratch scratch(kOp, context, (reduces ? p.rows + 1 : 1) * bytes);
  LossCall call{p, nullptr, p.divisor, false};
  if (reduces) call.losses = scratch.as<char>() + bytes;
  if (mean && p.dx != nullptr) {
    void* const total = p.total != nullptr ? p.total : scratch.as<void>();
    sum_rows(context, p, nullptr, total);
    call.total = total;
    call.after_sums = true;
  }
  if (p.rows > 0) {
    dispatch_bool(p.dx != nullptr, [&]<bool kGradient>() { run_rows<kGradient>(context, call); });
  }
  if (reduces) sum_rows(context, p, call.losses, p.total);
}

void cross_entropy_backward(const Context& context, const CrossEntropyBackwardProblem& p) {
  const std::size_t plan = part_plan(p.dtype, row_load(p).in_step);
  dispatch_float(p.dtype, [&]<class T>() { run_loss_backward<T>(context, p, plan); });
}

void reduce_losses(const Context& context, const ReduceLossesProblem& p) {
  const bool has_rows = p.rows > 0;  // else losses may be null, which means that none are wanted
  sum_rows(context, p, has_rows || p.loss == nullptr ? p.losses : p.loss, p.total);
}

void scale_gradient(const Context& context, const ScaleGradientProblem& p) {
  const std::size_t plan = part_plan(p.dtype, true);
  dispatch_float(p.dtype, [&]<class T>() { run_scale_gradient<T>(context, p, plan); });
}

}  // namespace transformer_kernels::cuda
