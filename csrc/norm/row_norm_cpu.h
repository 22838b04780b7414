// SPDX-License-Identifier: MIT
// The family's engine on the CPU: what the sources compiled once per instruction set export.
#pragma once

#include "core/cpu/isa.h"
#include "norm/row_norm.h"

namespace transformer_kernels::cpu {

// Parameters become wide rows of the problem's dtype (core/cpu/simd.h), once a call instead of once
// a row.
struct NormForwardTask {
  const NormForwardProblem& problem;
  const void* weight;  // scale of each column; never null
  const void* bias;    // null where there is none
  bool stream;         // the outputs leave the cache anyway
};

// Rows are cut into chunks that depend on the shape alone. Each chunk sums its part of the
// parameters' gradients in row order, and the parts are added in chunk order: the result is the
// same for any number of threads.
struct NormBackwardTask {
  const NormBackwardProblem& problem;
  const void* weight;
  void* partials;  // [chunks][2][wide_cols]: of dweight, of dbias; null where neither is wanted
  std::int64_t wide_cols;
  std::int64_t rows_per_chunk;
  bool stream;
};

// Of one parameter's gradient: `partials` points to its part of the first chunk.
struct NormReduction {
  const void* partials;
  std::int64_t chunks;
  std::int64_t stride;  // from one chunk's part to the next
  void* gradient;
  bool is_wide;  // the gradient is of accumulate_t<dtype>, not of dtype
};

struct NormParameter {
  const void* data;  // null stands for ones
  std::int64_t cols;
  double offset;  // added to each element
  bool is_wide;   // data is of accumulate_t<dtype>, not of dtype
};

struct NormKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of x

  // Rows [begin, end). `scratch` has room for one row.
  void (*forward[kDTypes])(const NormForwardTask& task, void* scratch, std::int64_t begin,
                           std::int64_t end);
  // Chunks [begin, end).
  void (*backward[kDTypes])(const NormBackwardTask& task, std::int64_t begin, std::int64_t end);
  // Columns [begin, end); begin is a multiple of wide_cols(1).
  void (*reduce[kDTypes])(const NormReduction& reduction, std::int64_t begin, std::int64_t end);
  void (*widen[kDTypes])(const NormParameter& parameter, void* wide);
};

TFK_DECLARE_PER_ISA(extern const NormKernels norm_kernels)

}  // namespace transformer_kernels::cpu
