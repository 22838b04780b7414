// SPDX-License-Identifier: MIT
// The CPU engine of softmax: kernels_isa.cpp is compiled once per instruction set and exports a
// table of row kernels; engine.cpp picks a table and runs its kernels over ranges of rows.
#pragma once

#include "core/cpu/isa.h"
#include "softmax/problem.h"

namespace transformer_kernels::cpu {

struct SoftmaxKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType

  // Rows [begin, end). `scratch` has room for one wide row of dtype; `stream` says that
  // the output leaves the cache anyway.
  void (*forward[kDTypes])(const SoftmaxForwardProblem& problem, bool stream, void* scratch,
                           std::int64_t begin, std::int64_t end);
  void (*backward[kDTypes])(const SoftmaxBackwardProblem& problem, bool stream, std::int64_t begin,
                            std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const SoftmaxKernels softmax_kernels)

}  // namespace transformer_kernels::cpu
