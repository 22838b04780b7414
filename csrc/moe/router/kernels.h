// SPDX-License-Identifier: MIT
// The router on the CPU: the exports of the source that is compiled once per instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "moe/router/problem.h"

namespace transformer_kernels::cpu {

struct RouterKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of x

  // Tokens [begin, end), which are of one sequence. Their scores are summed in `importance`, of
  // accumulate_dtype, which may be null.
  void (*forward[kDTypes])(const MoeRouterForwardProblem& problem, std::int64_t begin,
                           std::int64_t end, void* importance);
  void (*backward[kDTypes])(const MoeRouterBackwardProblem& problem, std::int64_t begin,
                            std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const RouterKernels router_kernels)

}  // namespace transformer_kernels::cpu
