// SPDX-License-Identifier: MIT
// Factors of rows, and their gradients: the exports of grouped_isa.cpp, which is compiled once per
// instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "core/rows.h"

namespace transformer_kernels::cpu {

// Numbers of rows, of accumulate_t of their dtype.
struct ScaledRows {
  Rows rows;
  std::int64_t count;
  std::int64_t cols;
  const void* factors;
};
struct DotOfRows {
  Rows a;
  Rows b;
  std::int64_t count;
  std::int64_t cols;
  void* dots;
};

struct GroupedKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  void (*scale[kDTypes])(const ScaledRows& task);  // each row times its factor
  void (*dot[kDTypes])(const DotOfRows& task);     // of each two rows
};

TFK_DECLARE_PER_ISA(extern const GroupedKernels grouped_kernels)

}  // namespace transformer_kernels::cpu
