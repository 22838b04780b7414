// SPDX-License-Identifier: MIT
// Launch policy of the norms of dropout(x + x_bias) + residual on CUDA, as plan.h.
#pragma once

#include "norm/dropout_problem.h"
#include "norm/plan.h"

namespace transformer_kernels::cuda {

// One-shot plans alone: they are the fastest with a residual at all widths but the widest, and the
// random numbers, of which a pack draws its own, leave no other engine an edge.
//   row bytes           threads rows cluster packs ctas wide  bulk prefetch
inline constexpr NormForwardPlan kDropoutNormForwardPlans[] = {
    {1536, RowPlan{32, 1, 1, 3, 16, true, true, true}},
    {2048, RowPlan{32, 1, 1, 4, 16, true, true, true}},
    {4096, RowPlan{64, 1, 1, 4, 16, true, true, false}},
    {8192, RowPlan{128, 1, 1, 4, 8, true, true, false}},
    {16384, RowPlan{256, 1, 1, 4, 4, true, true, false}},
    {32768, RowPlan{512, 1, 1, 4, 2, true, true, false}},
    {kAnyWidth, RowPlan{512, 1, 8, 0, 2, true, true, false}},
    {2048, RowPlan{32, 8, 1, 4, 4, true, false, false}},
    {16384, RowPlan{256, 1, 1, 4, 4, true, false, false}},
    {kAnyWidth, RowPlan{512, 1, 1, 0, 2, true, false, false}},
    {kAnyWidth, RowPlan{512, 1, 1, 0, 2, false, false, false}},
};

// Plans for an x of 16 bits beside a residual of float32, whose row bytes count. Only rows of the
// residual come by bulk copies; those of x go straight to registers. A problem that fits no plan is
// converted to float32.
inline constexpr NormForwardPlan kMixedNormForwardPlans[] = {
    {4096, RowPlan{64, 1, 1, 4, 16, true, true, false}},
    {8192, RowPlan{128, 1, 1, 4, 8, true, true, false}},
    {16384, RowPlan{256, 1, 1, 4, 4, true, true, false}},
    {kAnyWidth, RowPlan{256, 1, 1, 0, 4, true, false, false}},
};

// Plans of the backward pass with a gradient of the sum, as in a pre-norm model; without it the
// norm's kernel and then dropout's run.
//           packs warps groups cluster stages
inline constexpr RingPlan kDropoutNormBackwardPlans[] = {
    {1, 3, 8, 1, 2},  {1, 4, 6, 1, 2},  {2, 4, 4, 1, 2},  {2, 8, 2, 1, 2},
    {2, 16, 1, 1, 2}, {2, 16, 1, 2, 2}, {2, 16, 1, 4, 2}, {2, 16, 1, 8, 2},
};

inline constexpr RingPlan kMixedNormBackwardPlans[] = {
    {2, 3, 5, 1, 2},
    {2, 4, 4, 1, 2},
    {2, 8, 2, 1, 2},
    {2, 16, 1, 1, 2},
};

inline const char* dropout_norm_backward_refusal(const RingPlan& plan,
                                                 const DropoutNormBackwardProblem& p,
                                                 const DeviceLimits& device) {
  if (p.norm.dtype == DType::kFloat64) return "float64 moves single elements";
  if (p.norm.dsum.data == nullptr) return "no gradient of the sum";
  const Rows& dx = p.dropout.dx;
  const bool aligned =
      row_load(p.norm).aligned && starts_are_aligned(dx.data, dx.stride, p.norm.dtype);
  return ring_refusal(plan, p.norm.rows, p.norm.cols * size_of(p.norm.dtype), aligned,
                      norm_backward_shape(plan, p.norm, device).stages, device);
}

inline const char* dropout_norm_forward_refusal(const NormForwardPlan& entry,
                                                const DropoutNormForwardProblem& p,
                                                const DeviceLimits& device) {
  if (!moves_single_elements(entry) && !parameter_is_aligned(p.dropout.bias)) {
    return "x_bias is not 16-byte aligned";
  }
  return norm_forward_refusal(entry, p.norm, device);
}

// Whether every row of a branch starts where four elements of 16 bits are read at once.
inline bool branch_is_aligned(const Rows& branch) {
  return reinterpret_cast<std::uintptr_t>(branch.data) % 8 == 0 && branch.stride % 4 == 0;
}

inline RowLoad mixed_row_load(const DropoutNormForwardProblem& p) {
  NormForwardProblem sums = p.norm;
  sums.x = sums.y = {};
  RowLoad load = row_load(sums);
  load.staged = 1;
  load.aligned = load.aligned && branch_is_aligned(p.norm.x) && branch_is_aligned(p.norm.y);
  return load;
}

inline const char* mixed_norm_forward_refusal(const NormForwardPlan& entry,
                                              const DropoutNormForwardProblem& p,
                                              const DeviceLimits& device) {
  if (p.norm.cols * size_of(p.norm.dtype) > entry.max_row_bytes) return "row is wider";
  if (!parameter_is_aligned(p.dropout.bias)) return "x_bias is not 16-byte aligned";
  return row_plan_refusal(std::get<RowPlan>(entry.plan), mixed_row_load(p), device);
}

// Rows of dy come past the ring.
inline NormBackwardShape mixed_norm_backward_shape(const RingPlan& plan,
                                                   const DropoutNormBackwardProblem& p,
                                                   const DeviceLimits& device) {
  NormBackwardProblem sums = p.norm;
  sums.dsum = {};  // as many operands as a norm of one tensor: the sum and its gradient
  return norm_backward_shape(plan, sums, device);
}

inline const char* mixed_norm_backward_refusal(const RingPlan& plan,
                                               const DropoutNormBackwardProblem& p,
                                               const DeviceLimits& device) {
  if (!p.norm.center && p.norm.dbias != nullptr) return "rms_norm with a bias";
  NormBackwardProblem sums = p.norm;
  sums.dy = {};
  const bool aligned =
      row_load(sums).aligned && branch_is_aligned(p.norm.dy) && branch_is_aligned(p.dropout.dx);
  return ring_refusal(plan, p.norm.rows, p.norm.cols * size_of(p.norm.dtype), aligned,
                      mixed_norm_backward_shape(plan, p, device).stages, device);
}

}  // namespace transformer_kernels::cuda
