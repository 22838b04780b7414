// SPDX-License-Identifier: MIT
// The family's CPU engine: the exports of kernels_isa.cpp, which is compiled once per instruction
// set.
#pragma once

#include "core/cpu/isa.h"
#include "pointwise/problem.h"

namespace transformer_kernels::cpu {

// The work is cut into tiles, [columns] of one row: tiles 0 .. tiles_of_row() - 1 are of row 0.
inline constexpr std::int64_t kTileCols = 32 * 1024;

constexpr std::int64_t tiles_of_row(std::int64_t cols) {
  return (cols + kTileCols - 1) / kTileCols;
}

// Biases are wide rows of the problem's dtype (core/cpu/columns.h); where one of two is absent it
// is of -0, which changes nothing that it is added to; where both are, null.
struct PointwiseForwardTask {
  const PointwiseForwardProblem& problem;
  const void* bias;
  const void* up_bias;
  bool stream;  // the output leaves the cache anyway
};

// Where gradients of biases are wanted, each chunk of rows sums its part (core/cpu/columns.h).
struct PointwiseBackwardTask {
  const PointwiseBackwardProblem& problem;
  const void* bias;
  const void* up_bias;
  bool stream;
  void* partials;  // [chunks][2][wide_cols]: of dbias, of dup_bias; null where neither is wanted
  std::int64_t wide_cols;
  std::int64_t rows_per_chunk;
};

// Tables are indexed by the floating-point values of DType: of x.
struct PointwiseOpKernels {
  static constexpr int kDTypes = 4;

  // Tiles [begin, end).
  void (*forward[kDTypes])(const PointwiseForwardTask& task, std::int64_t begin, std::int64_t end);
  void (*backward[kDTypes])(const PointwiseBackwardTask& task, std::int64_t begin,
                            std::int64_t end);
  // Chunks [begin, end).
  void (*backward_chunks[kDTypes])(const PointwiseBackwardTask& task, std::int64_t begin,
                                   std::int64_t end);
};

struct PointwiseKernels {
  PointwiseOpKernels op[kPointwiseCount];
};

TFK_DECLARE_PER_ISA(extern const PointwiseKernels pointwise_kernels)

}  // namespace transformer_kernels::cpu
