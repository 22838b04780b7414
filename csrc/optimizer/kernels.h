// SPDX-License-Identifier: MIT
// The kernels of optimizers on the CPU: what they know of a tensor, and their table.
#pragma once

#include "core/cpu/isa.h"
#include "optimizer/problem.h"

namespace transformer_kernels::cpu {

// The numbers of a step that are the same for all elements of a tensor.
struct OptimizerNumbers {
  double unscale;    // what a gradient that is written is multiplied by
  double factor;     // and what it is multiplied by then, or at once
  double decay;      // 1 - lr weight_decay
  double step_size;  // of AdamW with the correction of the first moment's bias
  double beta1;
  double beta2;
  double root_factor;  // 1 / sqrt(1 - beta2^step)
  double eps;
};

// A tensor of the list. Pointers to what it lacks are null.
struct OptimizerRow {
  void* param;
  void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;
  float* master;
  float* exp_avg_scales;
  float* exp_avg_sq_scales;
  DType param_dtype;
  DType grad_dtype;
  DType state_dtype;
  std::int64_t number;
  OptimizerNumbers numbers;
  bool unscales_gradient;
  bool rounds_states_randomly;
  bool rounds_param_randomly;
  std::uint64_t seed;
  std::uint64_t step;
};

// Rows are cut into pieces of so many elements, a multiple of kStateBlock.
inline constexpr std::int64_t kOptimizerPiece = 16384;

struct OptimizerKernels {
  using Step = void (*)(const OptimizerRow& row, std::int64_t begin, std::int64_t end);

  Step adamw[2];  // in float64, in float32
  Step lion[2];
  // The sum of the squares of `count` numbers, which does not overflow; in the order of DType.
  double (*sum_of_squares[4])(const void* x, std::int64_t count);
};

TFK_DECLARE_PER_ISA(extern const OptimizerKernels optimizer_kernels)

}  // namespace transformer_kernels::cpu
