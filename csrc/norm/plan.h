// SPDX-License-Identifier: MIT
// Launch policy of the norms on CUDA: data and pure functions, no CUDA header.
#pragma once

#include <algorithm>
#include <variant>

#include "core/cuda/direct_plan.h"
#include "core/cuda/ring_plan.h"
#include "core/cuda/row_plan.h"
#include "norm/problem.h"

namespace transformer_kernels::cuda {

// The properties of a problem that decide the choice of a plan. A plan names the traits that it
// needs.
enum NormTrait : unsigned {
  kLayerNorm = 1u << 0,
  kRmsNorm = 1u << 1,
  kNoResidual = 1u << 2,
  kWithResidual = 1u << 3,     // forward: a residual to add; backward: a gradient of the sum
  kEqualParameters = 1u << 4,  // weight and bias are of x's dtype
  kFloatParameters = 1u << 5,  // float32 beside 16-bit rows
  kTwoBytes = 1u << 6,         // an element of x
  kFourBytes = 1u << 7,
};

constexpr unsigned norm_traits(bool center, bool residual, std::int64_t element_bytes,
                               std::int64_t parameter_bytes) {
  return (center ? kLayerNorm : kRmsNorm) | (residual ? kWithResidual : kNoResidual) |
         (parameter_bytes == element_bytes ? kEqualParameters : kFloatParameters) |
         (element_bytes == 2   ? kTwoBytes
          : element_bytes == 4 ? kFourBytes
                               : 0u);
}

// Rows up to `max_row_bytes` with the wanted traits run the plan; the first that fits wins. Small
// problems come first; the last plans run anything. Chosen by measurement on an H200:
// docs/decisions/0005-launch-plans.md and 0009-small-row-problems.md.
struct NormForwardPlan {
  std::int64_t max_row_bytes;
  std::variant<RowPlan, RingPlan, DirectPlan> plan;  // one-shot, persistent or direct kernel
  unsigned traits = 0;
};

// float64 is moved by plans without packs of 16 bytes.
constexpr bool moves_single_elements(const NormForwardPlan& entry) {
  const RowPlan* plan = std::get_if<RowPlan>(&entry.plan);
  return plan != nullptr && !plan->wide;
}

// Kinds of plans, as template arguments.
inline constexpr auto is_direct = [](const auto& entry) {
  return std::holds_alternative<DirectPlan>(entry.plan);
};
inline constexpr auto is_ring = [](const auto& entry) {
  return std::holds_alternative<RingPlan>(entry.plan);
};
constexpr bool is_bulk(const NormForwardPlan& entry) {
  const RowPlan* plan = std::get_if<RowPlan>(&entry.plan);
  return plan != nullptr && plan->needs_sm90();
}
// One-shot, on any architecture.
constexpr bool is_rows(const NormForwardPlan& entry) {
  const RowPlan* plan = std::get_if<RowPlan>(&entry.plan);
  return plan != nullptr && !plan->needs_sm90();
}

inline std::string name_of(const NormForwardPlan& entry) {
  return std::visit([](const auto& plan) { return name_of(plan); }, entry.plan);
}

constexpr unsigned kLayerNormOfFloats = kLayerNorm | kFloatParameters | kNoResidual;
constexpr unsigned kRmsNormOfFloats = kRmsNorm | kFloatParameters | kNoResidual;
constexpr unsigned kAddEqual = kEqualParameters | kWithResidual;

//   row bytes            packs threads ctas rows  MB
//                      threads rows cluster packs ctas  wide   bulk  prefetch stack
//                        packs warps groups cluster stages ctas
// clang-format off
inline constexpr NormForwardPlan kNormForwardPlans[] = {
    {2048,     DirectPlan{   1,  128,  1, 1024,  2}},
    {32768,    DirectPlan{   2, 1024,  1,  512,  4}},
    {512,         RowPlan{  32,  8,  1,  1,   4,  true,  true,  true}},
    {1536,        RowPlan{  32,  1,  1,  3,  16,  true,  true,  true}},
    {2048,        RowPlan{  32,  1,  1,  4,  16,  true,  true,  true}},
    {4096,        RowPlan{  64,  1,  1,  4,  16,  true,  true,  true}},
    {8192,        RowPlan{ 128,  1,  1,  0,   4,  true,  true, false, 2}, kLayerNormOfFloats},
    {8192,        RowPlan{ 128,  1,  1,  4,   8,  true,  true,  true}},
    {16384,       RowPlan{ 256,  1,  1,  0,   3,  true,  true, false, 2}, kLayerNormOfFloats},
    {16384,       RowPlan{ 256,  1,  1,  0,   6,  true,  true, false},
     kLayerNorm | kTwoBytes | kEqualParameters | kNoResidual},
    {16384,       RowPlan{ 256,  1,  1,  4,   4,  true,  true,  true}},
    {32768,       RowPlan{ 256,  1,  2,  0,   3,  true,  true, false, 2}, kLayerNormOfFloats},
    {32768,       RowPlan{ 256,  1,  1,  8,   3,  true,  true, false},    kRmsNormOfFloats},
    {32768,       RowPlan{ 256,  1,  1,  0,   3,  true,  true, false},
     kFloatParameters | kWithResidual},
    {32768,       RowPlan{ 512,  1,  1,  4,   2,  true,  true,  true},    kAddEqual},
    {32768,       RowPlan{ 512,  1,  1,  0,   3,  true,  true, false},
     kEqualParameters | kNoResidual},
    {65536,       RowPlan{ 512,  1,  1,  8,   1,  true,  true,  true},    kAddEqual},
    {65536,       RowPlan{ 512,  1,  1,  8,   2,  true,  true, false},
     kRmsNorm | kEqualParameters | kNoResidual},
    {65536,       RowPlan{ 512,  1,  1,  0,   3,  true,  true, false},    kLayerNorm | kFourBytes},
    {65536,      RingPlan{   2, 16,  1,  4,   4},                         kRmsNormOfFloats},
    {65536,      RingPlan{   4,  8,  1,  4,   2,  2},                     kTwoBytes},
    {131072,     RingPlan{   4,  8,  1,  8,   2,  2}},
    {262144,     RingPlan{   4,  8,  1, 16,   2,  2}},
    {524288,     RingPlan{   4, 16,  1, 16,   2}},
    {kAnyWidth,   RowPlan{ 512,  1,  8,  0,   2,  true,  true, false}},
    {2048,        RowPlan{  32,  8,  1,  4,   4,  true, false, false}},
    {16384,       RowPlan{ 256,  1,  1,  4,   4,  true, false, false}},
    {kAnyWidth,   RowPlan{ 512,  1,  1,  0,   2,  true, false, false}},
    {1024,        RowPlan{  32,  8,  1,  8,   4, false, false, false}},
    {2048,        RowPlan{  32,  4,  1,  0,   8,  true,  true, false, 1, true}},
    {8192,        RowPlan{ 128,  1,  1,  0,   8,  true,  true, false, 1, true}},
    {32768,       RowPlan{ 256,  1,  1,  0,   4,  true,  true, false, 1, true}},
    {65536,       RowPlan{ 512,  1,  1,  0,   2,  true,  true, false, 1, true}},
    {kAnyWidth,   RowPlan{ 256,  1,  4,  0,   4,  true,  true, false, 1, true}},
    {2048,        RowPlan{  32,  8,  1,  0,   3,  true, false, false, 1, true}},
    {kAnyWidth,   RowPlan{ 512,  1,  1,  0,   2,  true, false, false, 1, true}},
    {kAnyWidth,   RowPlan{ 512,  1,  1,  0,   2, false, false, false}},
};
// clang-format on

inline bool parameter_is_aligned(const void* parameter) {
  return reinterpret_cast<std::uintptr_t>(parameter) % 16 == 0;
}

inline RowLoad row_load(const NormForwardProblem& p) {
  bool aligned = p.cols * size_of(p.dtype) % 16 == 0 && parameter_is_aligned(p.weight) &&
                 parameter_is_aligned(p.bias);
  bool in_step = true;
  for (const Rows& rows : {p.x, p.residual, p.y, p.sum}) {
    aligned = aligned && starts_are_aligned(rows.data, rows.stride, p.dtype);
    in_step =
        in_step && (rows.data == nullptr ||
                    starts_are_in_step(rows.data, rows.stride, p.x.data, p.x.stride, p.dtype));
  }
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .staged = p.residual.data != nullptr ? 2 : 1,
          .aligned = aligned,
          .in_step = in_step};
}

// Static and dynamic shared memory besides the ring: three numbers of each warp's (moments.cuh).
inline int norm_forward_ring_stages(const RingPlan& plan, bool residual,
                                    const DeviceLimits& device) {
  constexpr int kMessageBytes = 16;
  return ring_stages(plan, residual ? 2 : 1, ring_static_bytes(plan, kMessageBytes), device);
}

inline const char* ring_refusal(const RingPlan& plan, std::int64_t rows, std::int64_t row_bytes,
                                bool aligned, int stages, const DeviceLimits& device) {
  // The plans are cut to sm_90's registers to the last one; elsewhere the compiler spills.
  if (device.architecture / 10 != 9) return "needs sm_90";
  if (row_bytes > plan.max_row_bytes()) return "row is wider";
  if (!aligned && !plan.shifted) return "rows are not 16-byte aligned";
  if (rows >= std::int64_t{1} << 31) return "more than 2^31 rows";
  if (row_bytes == 0 || rows == 0) return "x is empty";
  if (stages < 2) return "row is wider than shared memory";
  return nullptr;
}

inline const char* norm_forward_refusal(const NormForwardPlan& entry,
                                        const NormForwardProblem& problem,
                                        const DeviceLimits& device) {
  const bool residual = problem.residual.data != nullptr;
  const unsigned traits =
      norm_traits(problem.center, residual, size_of(problem.dtype), size_of(problem.weight_dtype));
  const std::int64_t row_bytes = problem.cols * size_of(problem.dtype);
  if ((entry.traits & ~traits) != 0) return "meant for another kind of norm";
  if (row_bytes > entry.max_row_bytes) return "row is wider";
  const RowLoad load = row_load(problem);
  if (problem.dtype == DType::kFloat64 && !moves_single_elements(entry)) {
    return "float64 moves single elements";
  }
  if (const DirectPlan* direct = std::get_if<DirectPlan>(&entry.plan)) {
    return direct_plan_refusal(*direct, load);
  }
  if (const RingPlan* ring = std::get_if<RingPlan>(&entry.plan)) {
    return ring_refusal(*ring, problem.rows, row_bytes, load.aligned,
                        norm_forward_ring_stages(*ring, residual, device), device);
  }
  return row_plan_refusal(std::get<RowPlan>(entry.plan), load, device);
}

// ------------------------------------------------------------------ backward

// The kernel that runs anywhere.
struct PlainPlan {};

inline std::string name_of(PlainPlan) { return "plain"; }

struct NormBackwardPlan {
  std::variant<RingPlan, DirectPlan, PlainPlan> plan;
  unsigned traits = 0;
  std::int64_t min_row_bytes = 0;
};

inline std::string name_of(const NormBackwardPlan& entry) {
  return std::visit([](const auto& plan) { return name_of(plan); }, entry.plan);
}

// The first plan that fits a problem runs it.
//             packs threads ctas rows MB, least threads: the columns' CTAs want many
//             packs warps groups cluster stages ctas
// clang-format off
inline constexpr NormBackwardPlan kNormBackwardPlans[] = {
    {DirectPlan{1, 512, 1, 256, 2, 256}},
    {DirectPlan{4, 512, 1,  64, 2, 256}},
    {RingPlan{1,  1, 15,  1, 2}},
    {RingPlan{1,  3,  9,  1, 2}, kNoResidual},
    {RingPlan{1,  3,  8,  1, 2}, kWithResidual},
    {RingPlan{1,  4,  6,  1, 2}},
    {RingPlan{2,  3,  5,  1, 2}},
    {RingPlan{2,  4,  4,  1, 2}, kLayerNorm},
    {RingPlan{1,  8,  3,  1, 2}, kRmsNorm},
    {RingPlan{2,  8,  2,  1, 2}},
    {RingPlan{1, 32,  1,  1, 2}, kNoResidual | kFourBytes},
    {RingPlan{1, 32,  1,  1, 2}, kRmsNorm | kNoResidual | kTwoBytes, 16384},
    {RingPlan{2, 16,  1,  1, 2}},
    {RingPlan{1, 32,  1,  2, 2}, kRmsNorm | kNoResidual},
    {RingPlan{2,  8,  1,  4, 2, 2}, kFourBytes},
    {RingPlan{2, 16,  1,  2, 2}, kTwoBytes},
    {RingPlan{2, 16,  1,  4, 2}},
    {RingPlan{2, 16,  1,  8, 2}, kNoResidual | kFourBytes, 131072},
    {RingPlan{4, 16,  1,  4, 2}, kNoResidual},
    {RingPlan{2, 16,  1,  8, 2}, kWithResidual},
    {RingPlan{2, 16,  1, 16, 2}, kTwoBytes | kWithResidual},
    {RingPlan{4, 16,  1,  8, 2}},
    {RingPlan{4, 16,  1, 16, 2}},
    {RingPlan{1,  1, 15,  1, 2, 1, true}},
    {RingPlan{1,  4,  4,  1, 2, 1, true}},
    {RingPlan{1,  8,  2,  1, 2, 1, true}},
    {RingPlan{1, 16,  1,  1, 2, 1, true}},
    {RingPlan{2, 16,  1,  1, 2, 1, true}, kNoResidual},
    {RingPlan{1, 16,  1,  2, 2, 1, true}, kWithResidual},
    {RingPlan{2, 16,  1,  2, 2, 1, true}, kNoResidual},
    {RingPlan{1, 16,  1,  4, 2, 1, true}, kWithResidual},
    {RingPlan{2, 16,  1,  8, 2, 1, true}, kNoResidual},
    {RingPlan{1, 16,  1,  8, 2, 1, true}, kWithResidual},
    {PlainPlan{}},
};
// clang-format on

// The part of the layout that depends on the problem too: the number of rows in the ring.
struct NormBackwardShape {
  int stages;
  int shared_bytes;  // dynamic
};

// Bytes of shared memory that hold the weights of one CTA's columns, as floats ready for use.
constexpr int ring_weight_bytes(const RingPlan& plan, int element_bytes) {
  return plan.cta_row_bytes() / element_bytes * 4;
}

inline NormBackwardShape norm_backward_shape(const RingPlan& plan, const NormBackwardProblem& p,
                                             const DeviceLimits& device) {
  constexpr int kMessageBytes = 8;
  const int element_bytes = static_cast<int>(size_of(p.dtype));
  const int tensors = p.dsum.data != nullptr ? 3 : 2;
  const int weight_bytes = ring_weight_bytes(plan, element_bytes);
  const int stages =
      ring_stages(plan, tensors, ring_static_bytes(plan, kMessageBytes) + weight_bytes, device);
  // At the end the ring's memory holds the groups' sums of dweight and dbias.
  const int fold_bytes = plan.groups * 2 * plan.cta_row_bytes() / element_bytes * 4;
  const int ring_bytes = stages * plan.stage_bytes() * tensors;
  return {stages, weight_bytes + std::max(ring_bytes, fold_bytes)};
}

inline RowLoad row_load(const NormBackwardProblem& p) {
  bool aligned = p.cols * size_of(p.dtype) % 16 == 0 && parameter_is_aligned(p.weight);
  for (const Rows& rows : {p.x, p.dy, p.dsum, p.dx}) {
    aligned = aligned && starts_are_aligned(rows.data, rows.stride, p.dtype);
  }
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .aligned = aligned};
}

inline const char* norm_backward_refusal(const NormBackwardPlan& entry,
                                         const NormBackwardProblem& p, const DeviceLimits& device) {
  if (std::holds_alternative<PlainPlan>(entry.plan)) return nullptr;
  const unsigned traits =
      norm_traits(p.center, p.dsum.data != nullptr, size_of(p.dtype), size_of(p.weight_dtype));
  if ((entry.traits & ~traits) != 0) return "meant for another kind of norm";
  if (p.cols * size_of(p.dtype) < entry.min_row_bytes) return "row is narrower";
  if (p.dtype == DType::kFloat64) return "float64 moves single elements";
  const RowLoad load = row_load(p);
  if (const DirectPlan* direct = std::get_if<DirectPlan>(&entry.plan)) {
    return p.dx.data == p.dy.data ? "dx is dy" : direct_plan_refusal(*direct, load);
  }
  const RingPlan& ring = std::get<RingPlan>(entry.plan);
  return ring_refusal(ring, p.rows, p.cols * size_of(p.dtype), load.aligned,
                      norm_backward_shape(ring, p, device).stages, device);
}

}  // namespace transformer_kernels::cuda
