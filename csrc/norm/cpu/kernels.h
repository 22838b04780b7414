// SPDX-License-Identifier: MIT
// The CPU engine of the norms: kernels_isa.cpp is compiled once per instruction set and exports a
// table of row kernels; engine.cpp picks a table and runs its kernels over ranges of rows.
#pragma once

#include "core/cpu/isa.h"
#include "norm/problem.h"

namespace transformer_kernels::cpu {

// Parameters are wide rows of the problem's dtype (core/cpu/columns.h).
struct NormForwardTask {
  const NormForwardProblem& problem;
  const void* weight;  // scale of each column; never null
  const void* bias;    // null where there is none
  bool stream;         // the outputs leave the cache anyway
};

// Each chunk of rows sums its part of the parameters' gradients (core/cpu/columns.h).
struct NormBackwardTask {
  const NormBackwardProblem& problem;
  const void* weight;
  void* partials;  // [chunks][2][wide_cols]: of dweight, of dbias; null where neither is wanted
  std::int64_t wide_cols;
  std::int64_t rows_per_chunk;
  bool stream;
};

struct NormKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of x

  // Rows [begin, end). `scratch` has room for one row.
  void (*forward[kDTypes])(const NormForwardTask& task, void* scratch, std::int64_t begin,
                           std::int64_t end);
  // Chunks [begin, end).
  void (*backward[kDTypes])(const NormBackwardTask& task, std::int64_t begin, std::int64_t end);
  // A row of 16 bits to and from float32; null for other dtypes.
  void (*widen[kDTypes])(const void* from, void* to, std::int64_t cols);
  void (*narrow[kDTypes])(const void* from, void* to, std::int64_t cols);
};

TFK_DECLARE_PER_ISA(extern const NormKernels norm_kernels)

}  // namespace transformer_kernels::cpu
