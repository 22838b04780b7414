// SPDX-License-Identifier: MIT
// The dispatch on the CPU: the exports of the source that is compiled once per instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "moe/dispatch/problem.h"

namespace transformer_kernels::cpu {

struct DispatchKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  // Tokens [begin, end).
  void (*spread[kDTypes])(const SpreadProblem& problem, std::int64_t begin, std::int64_t end);
  void (*combine[kDTypes])(const CombineProblem& problem, std::int64_t begin, std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const DispatchKernels dispatch_kernels)

}  // namespace transformer_kernels::cpu
