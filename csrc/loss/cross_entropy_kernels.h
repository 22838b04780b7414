// SPDX-License-Identifier: MIT
// The CUDA engines of cross-entropy. Each is compiled in a unit of its own for each storage type T
// (instances.cmake). No CUDA header.
#pragma once

#include "core/dispatch.h"
#include "loss/cross_entropy_plan.h"

namespace transformer_kernels::cuda {

// A call of the forward pass. `losses` and `total` are of accumulate_t<T>.
struct LossCall {
  CrossEntropyForwardProblem p;
  void* losses;       // one a row; null: they go to p.loss
  const void* total;  // divisor of the gradient; null: none
  bool after_sums;    // the kernel before computes total
};

// Row `plan` of kCrossEntropyPlans<kGradient>.
template <class T, bool kGradient>
void run_loss_rows(const Context& context, const LossCall& call, std::size_t plan);
template <class T, bool kGradient>
void run_loss_bulk(const Context& context, const LossCall& call, std::size_t plan);

// Row `plan` of kPartPlans.
template <class T>
void run_loss_backward(const Context& context, const CrossEntropyBackwardProblem& p,
                       std::size_t plan);
template <class T>
void run_scale_gradient(const Context& context, const ScaleGradientProblem& p, std::size_t plan);

// Adds up the rows' weights in the mean, into p.total or into `total`, a number of the arithmetic's
// type. With `losses`, of that type too, also writes their sum, or mean, to p.loss.
void sum_rows(const Context& context, const CrossEntropyForwardProblem& p, const void* losses,
              void* total);

// ------------------------------------------------------------------ for the units

template <bool kGradient, std::size_t kIndex>
struct LossPlanAt {
  static constexpr CrossEntropyPlan kEntry = kCrossEntropyPlans<kGradient>[kIndex];
  static constexpr RowPlan plan = kEntry.plan;
};

// Calls body.operator()<Plan>() for row `plan` of the table, among those that are bulk, or not.
template <bool kGradient, bool kBulk, class Body>
void dispatch_loss_plan(std::size_t plan, Body&& body) {
  dispatch_index<std::size(kCrossEntropyPlans<kGradient>)>(plan, [&]<std::size_t kIndex>() {
    using Plan = LossPlanAt<kGradient, kIndex>;
    if constexpr (Plan::plan.needs_sm90() == kBulk) body.template operator()<Plan>();
  });
}

}  // namespace transformer_kernels::cuda
