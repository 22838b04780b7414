// SPDX-License-Identifier: MIT
// Choice between the backward kernels of the norms. Kernels that a plan's traits rule out are not
// even compiled.
#pragma once

#include "core/dispatch.h"
#include "core/select.h"
#include "norm/row_norm_backward_chunk.h"
#include "norm/row_norm_backward_direct.cuh"
#include "norm/row_norm_backward_plain.cuh"
#include "norm/row_norm_backward_ring.cuh"

namespace transformer_kernels::cuda {

template <std::size_t kIndex>
struct NormBackwardPlanAt {
  static constexpr NormBackwardPlan kEntry = kNormBackwardPlans[kIndex];
  static constexpr auto plan = std::get<kEntry.plan.index()>(kEntry.plan);
};

template <class T, class W, bool kCenter, class Plan>
void launch_norm_backward(const char* op, const Context& context, const NormBackwardProblem& p) {
  if constexpr (std::holds_alternative<PlainPlan>(Plan::kEntry.plan)) {
    launch_norm_backward_plain<T, W, kCenter>(op, context, p);
  } else if constexpr (std::is_same_v<T, double>) {
    return;  // refused by the other plans
  } else if constexpr (std::holds_alternative<DirectPlan>(Plan::kEntry.plan)) {
    launch_norm_backward_direct<T, W, kCenter, Plan>(op, context, p);
  } else {
    dispatch_bool(p.dsum.data != nullptr, [&]<bool kDsum>() {
      constexpr unsigned kTraits = norm_traits(kCenter, kDsum, sizeof(T), sizeof(W));
      if constexpr ((Plan::kEntry.traits & ~kTraits) == 0) {
        // LayerNorm comes with a bias as a rule, RMSNorm without: only there is it worth a kernel.
        if (kCenter || p.dbias != nullptr) {
          launch_norm_backward_ring<T, W, kCenter, true, kDsum, Plan>(op, context, p);
        } else if constexpr (!kCenter) {
          launch_norm_backward_ring<T, W, kCenter, false, kDsum, Plan>(op, context, p);
        }
      }
    });
  }
}

template <bool kCenter, class Plan>
void run_norm_backward(const char* op, const Context& context, const NormBackwardProblem& p) {
  dispatch_float(p.dtype, [&]<class T>() {
    if (p.weight_dtype == p.dtype) {
      launch_norm_backward<T, T, kCenter, Plan>(op, context, p);
    } else if constexpr (!std::is_same_v<T, double>) {
      launch_norm_backward<T, float, kCenter, Plan>(op, context, p);
    }
  });
}

template <bool kCenter>
void norm_backward(const char* op, const Context& context, const NormBackwardProblem& p) {
  if (norm_backward_in_chunks(op, context, p)) return;
  const DeviceLimits& device = device_limits(context.device.index);
  const std::size_t chosen = choose(op, kNormBackwardPlans, p, [&](const NormBackwardPlan& plan) {
    return norm_backward_refusal(plan, p, device);
  });
  dispatch_index<std::size(kNormBackwardPlans)>(chosen, [&]<std::size_t kIndex>() {
    run_norm_backward<kCenter, NormBackwardPlanAt<kIndex>>(op, context, p);
  });
}

}  // namespace transformer_kernels::cuda
