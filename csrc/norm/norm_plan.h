// SPDX-License-Identifier: MIT
// Launch policy of the norms on CUDA: data and pure functions, no CUDA header.
#pragma once

#include <algorithm>

#include "core/cuda/row_plan.h"
#include "norm/row_norm.h"

namespace transformer_kernels::cuda {

// What a problem is, where it matters for the choice of a plan. A plan names the traits it wants.
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

// Rows up to `max_row_bytes` with the wanted traits run the plan; the first that fits wins. The
// last ones run anything. Chosen by measurement on an H200: docs/decisions/0005-launch-plans.md.
struct NormPlan {
  std::int64_t max_row_bytes;
  RowPlan plan;
  unsigned traits = 0;
};

inline std::string name_of(const NormPlan& plan) { return name_of(plan.plan); }

//                  row bytes  threads rows cluster packs ctas  wide   bulk  prefetch stack
// clang-format off
inline constexpr NormPlan kNormForwardPlans[] = {
    {512,                   {32,    8,     1,    1,   4,  true,  true,  true}},
    {1536,                  {32,    1,     1,    3,  16,  true,  true,  true}},
    {2048,                  {32,    1,     1,    4,  16,  true,  true,  true}},
    {3072,                  {64,    1,     1,    4,  16,  true,  true,  true}},
    {4096,                 {128,    1,     1,    2,  10,  true,  true,  true}, kEqualParameters},
    {4096,                  {64,    1,     1,    4,  16,  true,  true,  true}},
    {8192,                 {128,    1,     1,    4,   8,  true,  true,  true}},
    {16384,                {256,    1,     1,    4,   4,  true,  true,  true}, kEqualParameters},
    {16384,                {128,    1,     1,    8,   4,  true,  true, false}},
    {32768,                {512,    1,     1,    0,   3,  true,  true, false},
     kLayerNorm | kTwoBytes | kEqualParameters | kNoResidual},
    {32768,                {512,    1,     1,    4,   2,  true,  true,  true}, kEqualParameters},
    {32768,                {256,    1,     1,    0,   3,  true,  true, false}},
    {65536,                {512,    1,     1,    8,   1,  true,  true,  true},
     kEqualParameters | kWithResidual},
    {65536,                {512,    1,     1,    0,   3,  true,  true, false},
     kEqualParameters | kNoResidual},
    {65536,                {256,    1,     2,    0,   3,  true,  true, false, 2}},
    {131072,               {512,    1,     4,    0,   3,  true,  true, false},
     kEqualParameters | kWithResidual},
    {131072,               {512,    1,     2,    0,   3,  true,  true, false}, kEqualParameters},
    {262144,               {512,    1,     8,    0,   3,  true,  true, false},
     kEqualParameters | kWithResidual},
    {262144,               {256,    1,     8,    0,   6,  true,  true, false}, kEqualParameters},
    {kAnyWidth,            {512,    1,     8,    8,   1,  true,  true,  true},
     kEqualParameters | kWithResidual},
    {kAnyWidth,            {512,    1,     8,    0,   3,  true,  true, false}, kEqualParameters},
    {kAnyWidth,            {256,    1,     8,    0,   3,  true,  true, false, 2}},
    {2048,                  {32,    8,     1,    4,   4,  true, false, false}},
    {16384,                {256,    1,     1,    4,   4,  true, false, false}},
    {kAnyWidth,            {512,    1,     1,    0,   2,  true, false, false}},
    {512,                   {32,    8,     1,    8,   4, false, false, false}},
    {kAnyWidth,            {512,    1,     1,    0,   2, false, false, false}},
};
// clang-format on

inline bool parameter_is_aligned(const void* parameter) {
  return reinterpret_cast<std::uintptr_t>(parameter) % 16 == 0;
}

inline RowLoad row_load(const NormForwardProblem& p) {
  bool aligned = p.cols * size_of(p.dtype) % 16 == 0 && parameter_is_aligned(p.weight) &&
                 parameter_is_aligned(p.bias);
  for (const Rows& rows : {p.x, p.residual, p.y, p.sum}) {
    aligned = aligned && starts_are_aligned(rows.data, rows.stride, p.dtype);
  }
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .staged = p.residual.data != nullptr ? 2 : 1,
          .aligned = aligned};
}

inline const char* norm_forward_refusal(const NormPlan& plan, const NormForwardProblem& problem,
                                        const DeviceLimits& device) {
  const unsigned traits = norm_traits(problem.center, problem.residual.data != nullptr,
                                      size_of(problem.dtype), size_of(problem.weight_dtype));
  if ((plan.traits & ~traits) != 0) return "meant for another kind of norm";
  if (problem.dtype == DType::kFloat64 && plan.plan.wide) return "float64 moves single elements";
  if (problem.cols * size_of(problem.dtype) > plan.max_row_bytes) return "row is wider";
  return row_plan_refusal(plan.plan, row_load(problem), device);
}

// ------------------------------------------------------------------ backward

// How the persistent backward kernel lays rows over warps.
struct RingPlan {
  int packs;    // 16-byte packs of a row that one thread owns; 0: no ring, runs anywhere
  int warps;    // of a CTA that share a row
  int groups;   // of such warps in a CTA, each with a row of its own
  int cluster;  // CTAs that share a row; then groups == 1
  int stages;   // rows that the ring holds at most: more in flight make the memory slower
  unsigned traits = 0;

  constexpr int threads() const { return warps * groups * 32; }
  constexpr std::int64_t max_row_bytes() const {
    return std::int64_t{16} * 32 * packs * warps * cluster;
  }
};

// The first plan that fits a problem runs it.
//   packs warps groups cluster stages
// clang-format off
inline constexpr RingPlan kNormBackwardPlans[] = {
    {1,  1, 15,  1, 2},
    {1,  3,  8,  1, 2},
    {1,  4,  6,  1, 2},
    {2,  3,  5,  1, 2},
    {2,  4,  4,  1, 2, kLayerNorm},
    {1,  8,  3,  1, 2},
    {2,  8,  2,  1, 2, kLayerNorm},
    {1, 16,  1,  1, 4},
    {2, 16,  1,  1, 3, kLayerNorm},
    {2, 16,  1,  1, 8, kTwoBytes},
    {1, 32,  1,  1, 2, kNoResidual | kFourBytes},
    {2, 16,  1,  1, 3},
    {1, 32,  1,  2, 3, kRmsNorm | kNoResidual | kFourBytes},
    {2, 16,  1,  2, 2},
    {4, 16,  1,  2, 3, kTwoBytes | kNoResidual},
    {2, 16,  1,  4, 2},
    {4, 16,  1,  4, 3, kNoResidual},
    {2, 16,  1,  8, 2},
    {4, 16,  1,  8, 3},
    {4, 16,  1, 16, 3},
    {0,  0,  0,  0, 0},
};
// clang-format on

inline std::string name_of(const RingPlan& plan) {
  if (plan.packs == 0) return "plain";
  return concat("ring p", plan.packs, " w", plan.warps, " g", plan.groups, " c", plan.cluster, " s",
                plan.stages);
}

// What depends on the problem besides: how many rows the ring has room for.
struct RingShape {
  int stages;
  int shared_bytes;
};

inline constexpr int kSumSlots = 2;  // rows whose sums are under way at a time

// Static shared memory of the kernel: barriers, and the sums on their way between warps.
constexpr int ring_static_bytes(const RingPlan& plan) {
  const int sums = plan.groups * kSumSlots * 2 * plan.warps * plan.cluster * 4;
  return sums + plan.groups * plan.warps * plan.stages * 8 + 64;
}

// Bytes of shared memory that hold the weights of one CTA's columns.
constexpr int ring_weight_bytes(const RingPlan& plan, int element_bytes, int weight_bytes) {
  return 32 * plan.packs * plan.warps * 16 / element_bytes * weight_bytes;
}

inline RingShape ring_shape(const RingPlan& plan, const NormBackwardProblem& p,
                            const DeviceLimits& device) {
  const int element_bytes = static_cast<int>(size_of(p.dtype));
  const int tensors = p.dsum.data != nullptr ? 3 : 2;
  const int cta_row_bytes = 16 * 32 * plan.packs * plan.warps;
  const int stage_bytes = cta_row_bytes * tensors * plan.groups;
  const int weight_bytes =
      ring_weight_bytes(plan, element_bytes, static_cast<int>(size_of(p.weight_dtype)));
  const int budget = device.shared_bytes_per_cta - ring_static_bytes(plan) - weight_bytes - 1024;
  const int stages = std::min(plan.stages, budget / stage_bytes);
  // At the end the groups' sums of dweight and dbias meet in the ring's memory.
  const int fold_bytes = plan.groups * 2 * cta_row_bytes / element_bytes * 4;
  return {stages, weight_bytes + std::max(stages * stage_bytes, fold_bytes)};
}

inline const char* norm_backward_refusal(const RingPlan& plan, const NormBackwardProblem& p,
                                         const DeviceLimits& device) {
  if (plan.packs == 0) return nullptr;
  // The plans are cut to sm_90's registers to the last one; elsewhere the compiler spills.
  if (device.architecture / 10 != 9) return "needs sm_90";
  if (p.dtype == DType::kFloat64) return "float64 moves single elements";
  const unsigned traits =
      norm_traits(p.center, p.dsum.data != nullptr, size_of(p.dtype), size_of(p.weight_dtype));
  if ((plan.traits & ~traits) != 0) return "meant for another kind of norm";
  if (p.cols * size_of(p.dtype) > plan.max_row_bytes()) return "row is wider";
  bool aligned = p.cols * size_of(p.dtype) % 16 == 0 && parameter_is_aligned(p.weight);
  for (const Rows& rows : {p.x, p.dy, p.dsum, p.dx}) {
    aligned = aligned && starts_are_aligned(rows.data, rows.stride, p.dtype);
  }
  if (!aligned) return "rows are not 16-byte aligned";
  if (p.rows >= std::int64_t{1} << 31) return "more than 2^31 rows";
  if (p.cols == 0 || p.rows == 0) return "x is empty";
  if (ring_shape(plan, p, device).stages < 2) return "row is wider than shared memory";
  return nullptr;
}

}  // namespace transformer_kernels::cuda
