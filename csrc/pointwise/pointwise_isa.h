// SPDX-License-Identifier: MIT
// The family's engine on the CPU: what the source compiled once per instruction set exports.
#pragma once

#include "core/cpu/isa.h"
#include "pointwise/pointwise_problem.h"

namespace transformer_kernels::cpu {

// The work is cut into tiles, [columns] of one row: tiles 0 .. tiles_of_row() - 1 are of row 0.
inline constexpr std::int64_t kTileCols = 32 * 1024;

constexpr std::int64_t tiles_of_row(std::int64_t cols) {
  return (cols + kTileCols - 1) / kTileCols;
}

// Biases are wide rows of the problem's dtype (core/cpu/simd.h); where one of two is absent it is
// of -0, which changes nothing that it is added to; where both are, null.
struct PointwiseForwardTask {
  const PointwiseForwardProblem& problem;
  const void* bias;
  const void* up_bias;
  bool stream;  // the output leaves the cache anyway
};

// Where gradients of biases are wanted, rows are cut into chunks that depend on the shape alone.
// Each chunk sums its rows in order, and the sums are added in chunk order: the result is the same
// for any number of threads.
struct PointwiseBackwardTask {
  const PointwiseBackwardProblem& problem;
  const void* bias;
  const void* up_bias;
  bool stream;
  void* partials;  // [chunks][2][wide_cols]: of dbias, of dup_bias; null where neither is wanted
  std::int64_t wide_cols;
  std::int64_t rows_per_chunk;
};

// Columns [begin, end) of one gradient; begin is a multiple of wide_cols(1).
struct BiasReduction {
  const void* partials;  // those of the first chunk
  std::int64_t chunks;
  std::int64_t stride;  // from one chunk's to the next
  void* gradient;
  bool is_wide;  // the gradient is of accumulate_t<dtype>, not of dtype
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
  static constexpr int kDTypes = PointwiseOpKernels::kDTypes;

  PointwiseOpKernels op[kPointwiseCount];
  void (*reduce[kDTypes])(const BiasReduction& reduction, std::int64_t begin, std::int64_t end);
  // A bias, null for one of -0, as a wide row. `is_wide`: it is of accumulate_t<dtype>, not of
  // dtype.
  void (*widen[kDTypes])(const void* bias, bool is_wide, std::int64_t cols, void* wide);
};

TFK_DECLARE_PER_ISA(extern const PointwiseKernels pointwise_kernels)

}  // namespace transformer_kernels::cpu
