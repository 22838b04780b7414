// SPDX-License-Identifier: MIT
// Choice between the forward kernels of the norms. Kernels that a plan's traits rule out are not
// even compiled.
#pragma once

#include <iterator>

#include "core/dispatch.h"
#include "core/select.h"
#include "norm/row_norm_forward_chunk.h"
#include "norm/row_norm_forward_direct.cuh"
#include "norm/row_norm_forward_oneshot.cuh"
#include "norm/row_norm_forward_ring.cuh"

namespace transformer_kernels::cuda {

// A row of the plan table as a type: what a kernel takes as its template argument.
template <std::size_t kIndex>
struct NormForwardPlanAt {
  static constexpr NormForwardPlan kEntry = kNormForwardPlans[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};

template <class T, class W, bool kCenter, class Plan>
void launch_norm_forward(const char* op, const Context& context, const NormForwardProblem& p) {
  dispatch_bool(p.residual.data != nullptr, [&]<bool kResidual>() {
    constexpr unsigned kTraits = norm_traits(kCenter, kResidual, sizeof(T), sizeof(W));
    constexpr bool kWanted = (Plan::kEntry.traits & ~kTraits) == 0;
    if constexpr (kWanted && std::holds_alternative<RingPlan>(Plan::kEntry.plan)) {
      launch_norm_forward_ring<T, W, kCenter, kResidual, Plan>(op, context, p);
    } else if constexpr (kWanted && std::holds_alternative<DirectPlan>(Plan::kEntry.plan)) {
      launch_norm_forward_direct<T, W, kCenter, kResidual, Plan>(op, context, p);
    } else if constexpr (kWanted) {
      launch_norm_forward_oneshot<T, W, kCenter, kResidual, Plan>(op, context, p);
    }
  });
}

// The plan's kernel for the problem's dtypes.
template <bool kCenter, class Plan>
void run_norm_forward(const char* op, const Context& context, const NormForwardProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, double>) {
      if constexpr (moves_single_elements(Plan::kEntry)) {
        launch_norm_forward<T, T, kCenter, Plan>(op, context, p);
      }
    } else if (p.weight_dtype == p.dtype) {
      launch_norm_forward<T, T, kCenter, Plan>(op, context, p);
    } else {
      launch_norm_forward<T, float, kCenter, Plan>(op, context, p);
    }
  });
}

template <bool kCenter>
void norm_forward(const char* op, const Context& context, const NormForwardProblem& p) {
  if (norm_forward_in_chunks(op, context, p)) return;
  const DeviceLimits& device = device_limits(context.device.index);
  const std::size_t chosen = choose(op, kNormForwardPlans, p, [&](const NormForwardPlan& plan) {
    return norm_forward_refusal(plan, p, device);
  });
  dispatch_index<std::size(kNormForwardPlans)>(chosen, [&]<std::size_t kIndex>() {
    run_norm_forward<kCenter, NormForwardPlanAt<kIndex>>(op, context, p);
  });
}

}  // namespace transformer_kernels::cuda
