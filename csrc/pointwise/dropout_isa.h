// SPDX-License-Identifier: MIT
// Dropout on the CPU: the exports of dropout_isa.cpp, which is compiled once per instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels::cpu {

// The forward pass, and the backward pass where the gradient of a bias is not wanted: dropout of
// dy. The bias is a wide row of the problem's dtype (core/cpu/columns.h), or null.
struct DropoutTask {
  const DropoutForwardProblem& problem;
  const void* bias;
  bool stream;  // the output leaves the cache anyway
};

// Where the gradient of a bias is wanted, each chunk of rows sums its part (core/cpu/columns.h).
struct DropoutBackwardTask {
  const DropoutBackwardProblem& problem;
  bool stream;
  void* partials;  // [chunks][2][wide_cols], of which the first is used
  std::int64_t wide_cols;
  std::int64_t rows_per_chunk;
};

// Tables are indexed by the floating-point values of DType.
struct DropoutKernels {
  static constexpr int kDTypes = 4;

  // Tiles [begin, end), as those of kernels_isa.h.
  void (*tiles[kDTypes])(const DropoutTask& task, std::int64_t begin, std::int64_t end);
  // Chunks [begin, end).
  void (*backward_chunks[kDTypes])(const DropoutBackwardTask& task, std::int64_t begin,
                                   std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const DropoutKernels dropout_kernels)

}  // namespace transformer_kernels::cpu
