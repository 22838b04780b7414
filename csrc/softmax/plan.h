// SPDX-License-Identifier: MIT
// Launch policy of softmax on CUDA: data and pure functions, no CUDA header.
#pragma once

#include <variant>

#include "core/cuda/direct_plan.h"
#include "core/cuda/row_plan.h"
#include "softmax/problem.h"

namespace transformer_kernels::cuda {

// Rows up to `max_row_bytes` (of one tensor) run the plan; the first plan that fits wins. Small
// problems come first; the last plans run anything.
struct SoftmaxPlan {
  std::int64_t max_row_bytes;
  std::variant<RowPlan, DirectPlan> plan;
};

// float64 is moved by plans without packs of 16 bytes.
constexpr bool moves_single_elements(const SoftmaxPlan& entry) {
  const RowPlan* plan = std::get_if<RowPlan>(&entry.plan);
  return plan != nullptr && !plan->wide;
}

// Kinds of plans, as template arguments. Rows: one-shot, on any architecture.
inline constexpr auto is_direct_softmax = [](const SoftmaxPlan& entry) {
  return std::holds_alternative<DirectPlan>(entry.plan);
};
inline constexpr auto is_bulk_softmax = [](const SoftmaxPlan& entry) {
  const RowPlan* plan = std::get_if<RowPlan>(&entry.plan);
  return plan != nullptr && plan->needs_sm90();
};
inline constexpr auto is_rows_softmax = [](const SoftmaxPlan& entry) {
  return !is_direct_softmax(entry) && !is_bulk_softmax(entry);
};

inline std::string name_of(const SoftmaxPlan& entry) {
  return std::visit([](const auto& plan) { return name_of(plan); }, entry.plan);
}

//                      packs threads ctas  rows  MB
//   row bytes           threads rows cluster packs ctas  wide  bulk  prefetch
// clang-format off
inline constexpr SoftmaxPlan kSoftmaxForwardPlans[] = {
    {2048,     DirectPlan{   1,  128,  1,  2048,  4}},
    {32768,    DirectPlan{   2, 1024,  1,  2048, 16}},
    {512,       RowPlan{   32,  8,  1,  1,   6,   true,   true,  false}},
    {1536,      RowPlan{   32,  1,  1,  3,  16,   true,   true,  false}},
    {2048,      RowPlan{   32,  1,  1,  4,  16,   true,   true,  false}},
    {4096,      RowPlan{   64,  1,  1,  4,  16,   true,   true,  false}},
    {8192,      RowPlan{  128,  1,  1,  0,  12,   true,   true,  false}},
    {16384,     RowPlan{  256,  1,  1,  4,   4,   true,   true,  false}},
    {32768,     RowPlan{  256,  1,  1,  8,   3,   true,   true,  false}},
    {65536,     RowPlan{  512,  1,  1,  0,   3,   true,   true,  false}},
    {131072,    RowPlan{  256,  1,  4,  0,   6,   true,   true,  false}},
    {262144,    RowPlan{  256,  1,  8,  0,   4,   true,   true,  false}},
    {524288,    RowPlan{  256,  1, 16,  0,   5,   true,   true,  false}},
    {kAnyWidth, RowPlan{  512,  1,  8,  0,   3,   true,   true,  false}},
    {kAnyWidth, RowPlan{   32,  8,  1,  4,   4,   true,  false,  false}},
    {kAnyWidth, RowPlan{  256,  1,  1,  4,   4,   true,  false,  false}},
    {kAnyWidth, RowPlan{ 1024,  1,  1,  4,   1,   true,  false,  false}},
    {kAnyWidth, RowPlan{  512,  1,  1,  0,   2,   true,  false,  false}},
    {kAnyWidth, RowPlan{   32,  8,  1,  8,   4,  false,  false,  false}},
    {2048,      RowPlan{   32,  4,  1,  0,   8,   true,   true,  false, 1, true}},
    {8192,      RowPlan{  128,  1,  1,  0,   8,   true,   true,  false, 1, true}},
    {32768,     RowPlan{  256,  1,  1,  0,   4,   true,   true,  false, 1, true}},
    {65536,     RowPlan{  512,  1,  1,  0,   3,   true,   true,  false, 1, true}},
    {131072,    RowPlan{  256,  1,  4,  0,   6,   true,   true,  false, 1, true}},
    {kAnyWidth, RowPlan{  512,  1,  8,  0,   3,   true,   true,  false, 1, true}},
    {2048,      RowPlan{   32,  8,  1,  0,   4,   true,  false,  false, 1, true}},
    {kAnyWidth, RowPlan{  512,  1,  1,  0,   2,   true,  false,  false, 1, true}},
    {kAnyWidth, RowPlan{  256,  1,  1,  8,   4,  false,  false,  false}},
    {kAnyWidth, RowPlan{ 1024,  1,  1,  8,   1,  false,  false,  false}},
    {kAnyWidth, RowPlan{  512,  1,  1,  0,   1,  false,  false,  false}},
};
// clang-format on

// Two tensors come in for each one that goes out. Beyond 32 KB a row, shared memory holds too
// few at a time: registers take them up to what 1024 threads own, clusters beyond.
//                      packs threads ctas  rows  MB
//   row bytes           threads rows cluster packs ctas  wide  bulk  prefetch
// clang-format off
inline constexpr SoftmaxPlan kSoftmaxBackwardPlans[] = {
    {8192,     DirectPlan{   1,  512,  1,  4096, 16}},
    {32768,    DirectPlan{   4,  512,  2,  1024, 32}},
    {512,       RowPlan{   32,  8,  1,  1,   6,   true,   true,  false}},
    {1536,      RowPlan{   32,  8,  1,  3,   4,   true,   true,  false}},
    {2048,      RowPlan{   32,  4,  1,  4,   8,   true,   true,  false}},
    {3072,      RowPlan{   64,  1,  1,  4,  12,   true,   true,  false}},
    {4096,      RowPlan{  128,  2,  1,  2,   5,   true,   true,  false}},
    {8192,      RowPlan{  128,  1,  1,  4,   8,   true,   true,  false}},
    {16384,     RowPlan{  256,  1,  1,  4,   4,   true,   true,  false}},
    {32768,     RowPlan{  512,  1,  1,  4,   2,   true,   true,  false}},
    {65536,     RowPlan{  512,  1,  2,  0,   3,   true,   true,  false}},
    {131072,    RowPlan{  512,  1,  4,  0,   3,   true,   true,  false}},
    {262144,    RowPlan{  512,  1,  8,  0,   3,   true,   true,  false}},
    {kAnyWidth, RowPlan{  512,  1,  8,  0,   1,   true,   true,  false}},
    {kAnyWidth, RowPlan{   32,  8,  1,  4,   4,   true,  false,  false}},
    {kAnyWidth, RowPlan{  256,  1,  1,  4,   4,   true,  false,  false}},
    {kAnyWidth, RowPlan{  512,  1,  1,  4,   2,   true,  false,  false}},
    {kAnyWidth, RowPlan{ 1024,  1,  1,  4,   1,   true,  false,  false}},
    {kAnyWidth, RowPlan{  512,  1,  1,  0,   2,   true,  false,  false}},
    {kAnyWidth, RowPlan{   32,  8,  1,  8,   4,  false,  false,  false}},
    {2048,      RowPlan{   32,  4,  1,  0,   8,   true,   true,  false, 1, true}},
    {8192,      RowPlan{  128,  1,  1,  0,   8,   true,   true,  false, 1, true}},
    {32768,     RowPlan{  256,  1,  1,  0,   4,   true,   true,  false, 1, true}},
    {131072,    RowPlan{  512,  1,  4,  0,   3,   true,   true,  false, 1, true}},
    {kAnyWidth, RowPlan{  512,  1,  8,  0,   2,   true,   true,  false, 1, true}},
    {2048,      RowPlan{   32,  8,  1,  0,   4,   true,  false,  false, 1, true}},
    {kAnyWidth, RowPlan{  512,  1,  1,  0,   2,   true,  false,  false, 1, true}},
    {kAnyWidth, RowPlan{  256,  1,  1,  8,   4,  false,  false,  false}},
    {kAnyWidth, RowPlan{ 1024,  1,  1,  8,   1,  false,  false,  false}},
    {kAnyWidth, RowPlan{  512,  1,  1,  0,   1,  false,  false,  false}},
};
// clang-format on

inline RowLoad row_load(const SoftmaxForwardProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .staged = 1,
          .aligned = p.cols * size_of(p.dtype) % 16 == 0 &&
                     starts_are_aligned(p.x, p.x_stride, p.dtype) &&
                     starts_are_aligned(p.y, p.y_stride, p.dtype),
          .in_step = !p.masked() && starts_are_in_step(p.x, p.x_stride, p.y, p.y_stride, p.dtype)};
}

inline RowLoad row_load(const SoftmaxBackwardProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .staged = 2,
          .aligned = p.cols * size_of(p.dtype) % 16 == 0 &&
                     starts_are_aligned(p.dy, p.dy_stride, p.dtype) &&
                     starts_are_aligned(p.y, p.y_stride, p.dtype) &&
                     starts_are_aligned(p.dx, p.dx_stride, p.dtype),
          .in_step = starts_are_in_step(p.dy, p.dy_stride, p.y, p.y_stride, p.dtype) &&
                     starts_are_in_step(p.dx, p.dx_stride, p.y, p.y_stride, p.dtype)};
}

inline bool is_masked(const SoftmaxForwardProblem& problem) { return problem.masked(); }
inline bool is_masked(const SoftmaxBackwardProblem& problem) { return problem.masked; }

// Null when the plan runs the problem on the device, else why not.
template <class Problem>
const char* softmax_refusal(const SoftmaxPlan& entry, const Problem& problem,
                            const DeviceLimits& device) {
  if (problem.dtype == DType::kFloat64 && !moves_single_elements(entry)) {
    return "float64 moves single elements";
  }
  if (problem.cols * size_of(problem.dtype) > entry.max_row_bytes) return "row is wider";
  const RowLoad load = row_load(problem);
  if (const DirectPlan* direct = std::get_if<DirectPlan>(&entry.plan)) {
    return is_masked(problem) ? "knows no mask" : direct_plan_refusal(*direct, load);
  }
  return row_plan_refusal(std::get<RowPlan>(entry.plan), load, device);
}

}  // namespace transformer_kernels::cuda
