// SPDX-License-Identifier: MIT
// The layout of a direct row kernel: how it spreads a row over the threads of its CTA, and how
// large a problem it takes. Host-only, as row_plan.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/check.h"
#include "core/cuda/row_plan.h"

namespace transformer_kernels::cuda {

struct DirectPlan {
  int packs;          // 16-byte packs of its row that a thread keeps in registers
  int most_threads;   // of a CTA; a row that is narrower has fewer
  int min_ctas;       // CTAs of so many threads that the registers must leave room for on one SM
  int max_rows;       // with more rows than that ...
  int max_megabytes;  // ... or more of them in one operand, the plans of large problems are faster
  int min_threads = 32;

  constexpr int warps() const { return most_threads / 32; }
  constexpr std::int64_t row_packs() const { return std::int64_t{packs} * most_threads; }
};

// Threads of a CTA for a row of so many packs: whole warps.
constexpr int direct_threads(const DirectPlan& plan, std::int64_t row_packs) {
  return std::max(plan.min_threads, static_cast<int>(divide_up(row_packs, plan.packs * 32)) * 32);
}

// Null when `plan` can run `load`, and is the fastest for it, else why not.
constexpr const char* direct_plan_refusal(const DirectPlan& plan, const RowLoad& load) {
  const std::int64_t row_bytes = load.cols * load.element_bytes;
  if (load.rows == 0 || load.cols == 0) return "x is empty";
  if (load.rows > plan.max_rows) return "meant for fewer rows";
  if (!load.aligned) return "rows are not 16-byte aligned";
  if (row_bytes > plan.row_packs() * 16) return "row is wider than its registers hold";
  if (load.rows * row_bytes > std::int64_t{plan.max_megabytes} << 20) return "meant for less data";
  return nullptr;
}

// "direct t256 p2 m1"
inline std::string name_of(const DirectPlan& plan) {
  return concat("direct t", plan.most_threads, " p", plan.packs, " m", plan.min_ctas);
}

}  // namespace transformer_kernels::cuda
