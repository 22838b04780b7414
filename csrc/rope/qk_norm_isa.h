// SPDX-License-Identifier: MIT
// qk_norm's CPU engine: the exports of qk_norm_isa.cpp, which is compiled once per instruction set.
#pragma once

#include "rope/kernels_isa.h"
#include "rope/qk_norm_problem.h"

namespace transformer_kernels::cpu {

// Weights are wide rows (core/cpu/columns.h), of 1 where they are absent.
struct QkNormForwardTask {
  const QkNormForwardProblem& problem;
  const void* q_weight;
  const void* k_weight;
};

struct QkNormBackwardTask {
  const QkNormBackwardProblem& problem;
  const void* q_weight;
  const void* k_weight;
  std::int64_t wide_cols;
};

struct QkNormKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  // Takes at most kTokensPerBlock tokens.
  void (*forward[kDTypes])(const QkNormForwardTask& task, const RopeToken* tokens, int count);
  // Takes at most kTokensPerBlock tokens; adds to the sums of both weights' gradients,
  // [2][wide_cols].
  void (*backward[kDTypes])(const QkNormBackwardTask& task, const RopeToken* tokens, int count,
                            void* sums);
};

TFK_DECLARE_PER_ISA(extern const QkNormKernels qk_norm_kernels)

}  // namespace transformer_kernels::cpu
