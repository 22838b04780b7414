// SPDX-License-Identifier: MIT
// token_log_probs on the CPU: the exports of the source that is compiled once per instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "loss/token_log_probs_problem.h"

namespace transformer_kernels::cpu {

struct TokenLogProbsKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of x

  // Rows [begin, end).
  void (*forward[kDTypes])(const TokenLogProbsForwardProblem& problem, std::int64_t begin,
                           std::int64_t end);
  void (*backward[kDTypes])(const TokenLogProbsBackwardProblem& problem, std::int64_t begin,
                            std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const TokenLogProbsKernels token_log_probs_kernels)

}  // namespace transformer_kernels::cpu
