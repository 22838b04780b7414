// SPDX-License-Identifier: MIT
// The family's CPU engine: the exports of kernels_isa.cpp, which is compiled once per instruction
// set.
#pragma once

#include "core/cpu/isa.h"
#include "rope/position.h"

namespace transformer_kernels::cpu {

// Tokens whose angles are made together, before all heads of theirs are rotated.
inline constexpr int kTokensPerBlock = 16;

struct RopeToken {
  Token at;
  Positions positions;
};

// The tokens from one on, kTokensPerBlock at most.
int tokens_from(const RopeProblem& problem, std::int64_t first, std::int64_t last,
                RopeToken* tokens);

struct RopeTask {
  const RopeProblem& problem;
  bool stream;  // results leave the cache anyway
};

struct RopeKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  // Rotates at most kTokensPerBlock tokens.
  void (*rotate[kDTypes])(const RopeTask& task, const RopeToken* tokens, int count);
  void (*finish)();  // after the last call of a thread
};

TFK_DECLARE_PER_ISA(extern const RopeKernels rope_kernels)

}  // namespace transformer_kernels::cpu
