// SPDX-License-Identifier: MIT
// The choice between the CUDA engines of the norms.
#include "core/cuda/built.h"
#include "core/cuda/device.h"
#include "core/select.h"
#include "norm/chunk/plan.h"
#include "norm/kernels.h"
#include "norm/problem.h"

namespace transformer_kernels::cuda {
namespace {

// Chunk plans come before those of the other tables.
template <class Table, class Problem>
std::optional<std::size_t> find_chunk_plan(const Table& table, const Problem& p,
                                           const DeviceLimits& device) {
  return find_kernel(p.op, table, p,
                     [&](const auto& row) { return chunk_refusal(row, p, device); });
}

void mixed_norm_forward(const Context& context, const DropoutNormForwardProblem& p,
                        const DeviceLimits& device) {
  const auto plan = find_kernel(
      p.norm.op, kMixedNormForwardPlans, p,
      [&](const NormForwardPlan& entry) { return mixed_norm_forward_refusal(entry, p, device); });
  if (!plan) return run_mixed_norm_forward_converted(context, p);
  dispatch_narrow(p.branch_dtype, [&]<class X>() {
    if (is_rows(kMixedNormForwardPlans[*plan])) {
      return run_mixed_norm_forward_rows<X>(context, p, *plan);
    }
    if constexpr (kBuildsSm90) run_mixed_norm_forward_bulk<X>(context, p, *plan);
  });
}

void mixed_norm_backward(const Context& context, const DropoutNormBackwardProblem& p,
                         const DeviceLimits& device) {
  if constexpr (kBuildsSm90a) {
    const auto ring = find_kernel(p.norm.op, kMixedNormBackwardPlans, p, [&](const RingPlan& plan) {
      return mixed_norm_backward_refusal(plan, p, device);
    });
    if (ring) {
      return dispatch_narrow(
          p.branch_dtype, [&]<class X>() { run_mixed_norm_backward_ring<X>(context, p, *ring); });
    }
  }
  run_mixed_norm_backward_converted(context, p);
}

}  // namespace

void norm_forward(const Context& context, const NormForwardProblem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  if constexpr (kBuildsSm90a) {
    if (const auto chunk = find_chunk_plan(kNormForwardChunks, p, device)) {
      return dispatch_below_double(
          p.dtype, [&]<class T>() { run_norm_forward_chunk<T>(context, p, *chunk); });
    }
  }
  const std::size_t plan = choose(p.op, kNormForwardPlans, p, [&](const NormForwardPlan& entry) {
    return norm_forward_refusal(entry, p, device);
  });
  const NormForwardPlan& entry = kNormForwardPlans[plan];
  if (is_rows(entry)) {
    return dispatch_float(p.dtype, [&]<class T>() { run_norm_forward_rows<T>(context, p, plan); });
  }
  dispatch_below_double(p.dtype, [&]<class T>() {
    if (is_direct(entry)) return run_norm_forward_direct<T>(context, p, plan);
    if constexpr (kBuildsSm90a) {
      if (is_ring(entry)) return run_norm_forward_ring<T>(context, p, plan);
    }
    if constexpr (kBuildsSm90) run_norm_forward_bulk<T>(context, p, plan);
  });
}

void dropout_norm_forward(const Context& context, const DropoutNormForwardProblem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  if (is_mixed(p)) return mixed_norm_forward(context, p, device);
  const std::size_t plan = choose(
      p.norm.op, kDropoutNormForwardPlans, p,
      [&](const NormForwardPlan& entry) { return dropout_norm_forward_refusal(entry, p, device); });
  if (is_rows(kDropoutNormForwardPlans[plan])) {
    return dispatch_float(p.norm.dtype,
                          [&]<class T>() { run_dropout_norm_forward_rows<T>(context, p, plan); });
  }
  if constexpr (kBuildsSm90) {
    dispatch_below_double(p.norm.dtype,
                          [&]<class T>() { run_dropout_norm_forward_bulk<T>(context, p, plan); });
  }
}

void dropout_norm_backward(const Context& context, const DropoutNormBackwardProblem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  if (is_mixed(p)) return mixed_norm_backward(context, p, device);
  if constexpr (kBuildsSm90a) {
    const auto ring = find_kernel(
        p.norm.op, kDropoutNormBackwardPlans, p,
        [&](const RingPlan& plan) { return dropout_norm_backward_refusal(plan, p, device); });
    if (ring) {
      return dispatch_below_double(
          p.norm.dtype, [&]<class T>() { run_dropout_norm_backward_ring<T>(context, p, *ring); });
    }
  }
  norm_backward(context, p.norm);
  if (!is_empty(p.dropout)) dropout_backward(context, p.dropout);
}

void norm_backward(const Context& context, const NormBackwardProblem& p) {
  const DeviceLimits& device = device_limits(context.device.index);
  if constexpr (kBuildsSm90a) {
    if (const auto chunk = find_chunk_plan(kNormBackwardChunks, p, device)) {
      return dispatch_below_double(
          p.dtype, [&]<class T>() { run_norm_backward_chunk<T>(context, p, *chunk); });
    }
  }
  const std::size_t plan = choose(p.op, kNormBackwardPlans, p, [&](const NormBackwardPlan& entry) {
    return norm_backward_refusal(entry, p, device);
  });
  const NormBackwardPlan& entry = kNormBackwardPlans[plan];
  if (is_direct(entry)) {
    return dispatch_below_double(p.dtype,
                                 [&]<class T>() { run_norm_backward_direct<T>(context, p, plan); });
  }
  if constexpr (kBuildsSm90a) {
    if (is_ring(entry)) {
      return dispatch_below_double(p.dtype,
                                   [&]<class T>() { run_norm_backward_ring<T>(context, p, plan); });
    }
  }
  dispatch_float(p.dtype, [&]<class T>() { run_norm_backward_plain<T>(context, p); });
}

}  // namespace transformer_kernels::cuda
