// SPDX-License-Identifier: MIT
// Cross-entropy on the CPU: the exports of the sources that are compiled once per instruction set.
#pragma once

#include "core/cpu/isa.h"
#include "loss/cross_entropy_problem.h"

namespace transformer_kernels::cpu {

// Values that all rows of a call share, beside their problem.
struct LossCall {
  const void* wide_weight;  // a wide row (core/cpu/simd.h); null without a weight
  double weight_sum;        // of all columns; C without a weight
  double total;             // the sum of the rows' weights
  double gain;              // of the gradient: 1, or 1 / total in a mean
};

struct CrossEntropyKernels {
  static constexpr int kDTypes = 4;  // indexed by the floating-point values of DType: of x

  double (*sum_wide[kDTypes])(const void* wide, std::int64_t cols);
  // The weight of a row in the mean: 0 for an ignored row.
  double (*row_weight[kDTypes])(const CrossEntropyProblem& problem, std::int64_t row);
  // Rows [begin, end). Losses go to an array of the arithmetic's type, one a row.
  void (*forward[kDTypes])(const CrossEntropyForwardProblem& problem, const LossCall& call,
                           void* losses, std::int64_t begin, std::int64_t end);
  void (*backward[kDTypes])(const CrossEntropyBackwardProblem& problem, const LossCall& call,
                            std::int64_t begin, std::int64_t end);
  // Conversion from the arithmetic's type to the dtype of the kernels, and back for one number.
  void (*narrow[kDTypes])(const void* from, void* to, std::int64_t count);
  double (*number[kDTypes])(const void* element);
  void (*scale[kDTypes])(const ScaleGradientProblem& problem, double by, std::int64_t begin,
                         std::int64_t end);
};

TFK_DECLARE_PER_ISA(extern const CrossEntropyKernels cross_entropy_kernels)

}  // namespace transformer_kernels::cpu
