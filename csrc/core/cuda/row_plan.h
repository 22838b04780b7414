// SPDX-License-Identifier: MIT
// The layout of a row kernel: how it spreads rows over threads. Host-only: a plan is data, chosen
// by rules that are tested without a GPU, and is a kernel's template argument.
#pragma once

#include <cstdint>
#include <string>

#include "core/check.h"
#include "core/cuda/device.h"
#include "core/rounding.h"

namespace transformer_kernels::cuda {

inline constexpr std::int64_t kAnyWidth = INT64_MAX;  // for a plan that has no widest row

struct RowPlan {
  int threads;    // threads of a CTA that share a row, a power of two from 32
  int rows;       // rows a CTA works on side by side
  int cluster;    // CTAs that share a row
  int packs;      // packs of its row a thread keeps in registers; 0: it reads them in each pass
  int min_ctas;   // CTAs that the registers must leave room for on one SM
  bool wide;      // a pack is 16 bytes; else one element, which suits any alignment
  bool bulk;      // rows come to shared memory by bulk copies (sm_90 and later); needs `wide`
  bool prefetch;  // parameters are read while the row is under way, into registers
  int stack = 1;  // rows a thread works on together: parameters are read once for all of them
  // Rows start anywhere, but those of all operands equally far behind a 16-byte boundary. Packs lie
  // between such boundaries, and the first and the last one of a row may reach out of it.
  bool shifted = false;

  constexpr int warps() const { return threads / 32; }
  constexpr int cta_threads() const { return threads * rows; }
  constexpr int cta_rows() const { return rows * stack; }
  constexpr bool needs_sm90() const { return bulk || cluster > 1; }
};

// The load that a plan must fit: the rows of one call, of an operand of `element_bytes`.
struct RowLoad {
  std::int64_t rows;
  std::int64_t cols;
  int element_bytes;
  int staged = 0;        // tensors of which a row lies in shared memory at a time
  bool aligned;          // every row of every operand starts and ends at a multiple of 16 bytes
  bool in_step = false;  // a row's start is equally far behind such a multiple in all operands
};

// Whether every row of a matrix starts at a multiple of 16 bytes.
inline bool starts_are_aligned(const void* data, std::int64_t stride, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * size_of(dtype) % 16 == 0;
}

// Whether each row starts equally far behind a multiple of 16 bytes in both matrices.
inline bool starts_are_in_step(const void* a, std::int64_t a_stride, const void* b,
                               std::int64_t b_stride, DType dtype) {
  const auto distance = reinterpret_cast<std::uintptr_t>(a) - reinterpret_cast<std::uintptr_t>(b);
  return distance % 16 == 0 && (a_stride - b_stride) * size_of(dtype) % 16 == 0;
}

constexpr int pack_size(const RowPlan& plan, int element_bytes) {
  return plan.wide ? 16 / element_bytes : 1;
}

// Packs of the largest slice of a row that one CTA holds.
constexpr std::int64_t slice_packs(const RowPlan& plan, std::int64_t cols, int element_bytes) {
  const int size = pack_size(plan, element_bytes);
  const std::int64_t most = cols > 0 ? divide_up(cols - 1, size) + 1 : 0;
  return divide_up(plan.shifted ? most : cols / size, plan.cluster);
}

constexpr std::int64_t slice_packs(const RowPlan& plan, const RowLoad& load) {
  return slice_packs(plan, load.cols, load.element_bytes);
}

// Dynamic shared memory of a CTA.
constexpr std::int64_t staged_bytes(const RowPlan& plan, const RowLoad& load) {
  return plan.bulk ? slice_packs(plan, load) * 16 * load.staged * plan.cta_rows() : 0;
}

// Null when `plan` can run `load` on the device, else why not.
constexpr const char* row_plan_refusal(const RowPlan& plan, const RowLoad& load,
                                       const DeviceLimits& device) {
  constexpr int kStaticSharedBytes = 1024;
  if (plan.needs_sm90() && device.architecture < 90) return "needs sm_90";
  if (plan.shifted && !load.in_step) return "rows of the operands are aligned differently";
  if (plan.wide && !plan.shifted && !load.aligned) return "rows are not 16-byte aligned";
  if (plan.packs > 0 && slice_packs(plan, load) > plan.packs * plan.threads) {
    return "row is wider than its registers hold";
  }
  if (staged_bytes(plan, load) + kStaticSharedBytes > device.shared_bytes_per_cta) {
    return "row is wider than shared memory";
  }
  return nullptr;
}

// "bulk t128 r2 c1 p4 m12"
inline std::string name_of(const RowPlan& plan) {
  return concat(plan.shifted ? "shifted " : "",
                plan.bulk   ? "bulk"
                : plan.wide ? "wide"
                            : "plain",
                " t", plan.threads, " r", plan.rows, " c", plan.cluster, " p", plan.packs, " m",
                plan.min_ctas, plan.prefetch ? " prefetch" : "",
                plan.stack > 1 ? concat(" s", plan.stack) : "");
}

}  // namespace transformer_kernels::cuda
