// SPDX-License-Identifier: MIT
// Launch policy of cross-entropy on CUDA: data and pure functions, no CUDA header.
#pragma once

#include <algorithm>
#include <iterator>

#include "core/cuda/row_plan.h"
#include "core/rounding.h"
#include "loss/cross_entropy_problem.h"

namespace transformer_kernels::cuda {

// Rows of so many bytes run the plan; the first plan that fits wins. The last one runs anything.
struct CrossEntropyPlan {
  std::int64_t least_row_bytes;
  std::int64_t most_row_bytes;
  bool any_terms;  // else labels alone: no probabilities, label smoothing, or soft cap
  RowPlan plan;
};

// "any wide t256 ..."
inline std::string name_of(const CrossEntropyPlan& entry) {
  return concat(entry.any_terms ? "any " : "", name_of(entry.plan));
}

constexpr bool needs_any_terms(const CrossEntropyProblem& p) {
  return !p.has_labels() || p.label_smoothing != 0 || p.softcap != 0;
}

// Bytes of shared memory for rows that leave room for two CTAs on an SM.
inline constexpr std::int64_t kHalfOfShared = 112 * 1024;

// The loss alone. Chosen by measurement on an H200: docs/decisions/0013-cross-entropy-on-cuda.md.
//   row bytes               any terms  threads rows cluster packs ctas wide bulk prefetch ...
// clang-format off
inline constexpr CrossEntropyPlan kLossPlans[] = {
    {0,     4096,          false, RowPlan{  32,  8,  1,  0,  4,  true, false, false, 1, true}},
    {32768, kHalfOfShared, false, RowPlan{ 512,  1,  1,  0,  2,  true,  true, false, 1, true}},
    {0,     kAnyWidth,     false, RowPlan{ 128,  1,  1,  0,  8,  true, false, false, 1, true}},
    {0,     kAnyWidth,     true,  RowPlan{ 256,  1,  1,  0,  2,  true, false, false, 1, true}},
    {0,     kAnyWidth,     true,  RowPlan{ 256,  1,  1,  0,  2, false, false, false}},
};

// The loss and its gradient: rows stay in shared memory, of one CTA or of a cluster; those of other
// plans are read twice, the second time from L2.
inline constexpr CrossEntropyPlan kLossAndGradientPlans[] = {
    {0,     4096,          false, RowPlan{  32,  8,  1,  0,  3,  true, false, false, 1, true}},
    {0,     32768,         false, RowPlan{ 256,  1,  1,  0,  4,  true,  true, false, 1, true}},
    {0,     kHalfOfShared, false, RowPlan{ 512,  1,  1,  0,  2,  true,  true, false, 1, true}},
    {0,     204800,        false, RowPlan{ 256,  1,  4,  0,  5,  true,  true, false, 1, true}},
    {0,     262144,        false, RowPlan{ 512,  1,  4,  0,  3,  true,  true, false, 1, true}},
    {0,     kAnyWidth,     false, RowPlan{ 512,  1,  8,  0,  3,  true,  true, false, 1, true}},
    {0,     kAnyWidth,     false, RowPlan{ 512,  1,  1,  0,  2,  true, false, false, 1, true}},
    {0,     kAnyWidth,     true,  RowPlan{ 256,  1,  1,  0,  2,  true, false, false, 1, true}},
    {0,     kAnyWidth,     true,  RowPlan{ 256,  1,  1,  0,  2, false, false, false}},
};
// clang-format on

template <bool kGradient>
inline constexpr const auto& kCrossEntropyPlans = kLossPlans;
template <>
inline constexpr const auto& kCrossEntropyPlans<true> = kLossAndGradientPlans;

// The load of passes that read and write: x and dx alone count, because probabilities are read one
// by one.
inline RowLoad row_load(const CrossEntropyProblem& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .element_bytes = static_cast<int>(size_of(p.dtype)),
          .staged = 1,
          .aligned = false,
          .in_step =
              p.dx == nullptr || starts_are_in_step(p.x, p.x_stride, p.dx, p.dx_stride, p.dtype)};
}

// Whether a storage type has the plan's kernel: packs fit every x, but not always dx as well.
constexpr bool is_compiled(const RowPlan& plan, bool is_double, bool gradient) {
  return is_double ? !plan.wide : plan.wide || gradient;
}

// Null when the plan runs the problem on the device, else why not.
inline const char* cross_entropy_refusal(const CrossEntropyPlan& entry,
                                         const CrossEntropyProblem& p, const DeviceLimits& device) {
  const bool is_double = p.dtype == DType::kFloat64;
  if (is_double && entry.plan.wide) return "float64 moves single elements";
  if (!is_compiled(entry.plan, is_double, p.dx != nullptr)) return "packs fit";
  if (needs_any_terms(p) && !entry.any_terms) return "knows labels alone";
  const std::int64_t row_bytes = p.cols * size_of(p.dtype);
  if (row_bytes > entry.most_row_bytes) return "row is wider";
  if (row_bytes <= entry.least_row_bytes) return "row is narrower";
  return row_plan_refusal(entry.plan, row_load(p), device);
}

// ------------------------------------------------------------------ passes without a row's sums

// A CTA moves parts of rows once, without a loop. Rows so narrow that its threads would be idle
// share one.
inline constexpr int kPartThreads = 256;  // at most
inline constexpr int kPartPacks = 2;      // of a thread

// Packs of an operand between 16-byte boundaries, or of single elements.
inline constexpr RowPlan kPartPlans[] = {
    {kPartThreads, 1, 1, 0, 1, true, false, false, 1, true},
    {kPartThreads, 1, 1, 0, 1, false, false, false},
};

struct PartGrid {
  int threads;    // of a row's part
  int threads_y;  // rows of a CTA
  int parts;      // of a row
  std::int64_t row_blocks;

  constexpr std::int64_t ctas() const { return row_blocks * parts; }
};

constexpr PartGrid part_grid(const RowPlan& plan, std::int64_t rows, std::int64_t cols,
                             int element_bytes) {
  const std::int64_t packs = slice_packs(plan, cols, element_bytes);
  int threads = 1;
  while (threads < kPartThreads && threads * kPartPacks < packs) threads *= 2;
  const int threads_y = kPartThreads / threads;
  const auto parts = static_cast<int>(divide_up(packs, threads * kPartPacks));
  return {threads, threads_y, parts, divide_up(rows, threads_y)};
}

// The row of kPartPlans. `in_step`: x and dx, or x alone, are aligned such that packs of both fit.
inline std::size_t part_plan(DType dtype, bool in_step) {
  return dtype == DType::kFloat64 || !in_step ? 1 : 0;
}

}  // namespace transformer_kernels::cuda
