// SPDX-License-Identifier: MIT
// The tables in which the CUDA kernels of optimizers find the tensors of a list. They are kernel
// parameters, so that a call copies nothing to the device, and a CUDA graph keeps them.
#pragma once

#include <cstdint>

#include "transformer_kernels/optimizer/tensors.h"

namespace transformer_kernels::cuda {

// Parameters hold 32764 bytes. A short list has a table of its own, which takes less time to pass.
inline constexpr int kMostRows = 320;
inline constexpr int kFewRows = 32;

inline constexpr int kWarpThreads = 32;
inline constexpr int kUpdateThreads = 128;
inline constexpr std::int64_t kUpdateChunk = kUpdateThreads / kWarpThreads * kStateBlock;
inline constexpr int kSumThreads = 256;
inline constexpr std::int64_t kSumChunk = 8192;
inline constexpr int kCountThreads = 512;  // at least kMostRows

// A tensor that is updated. Pointers to what it lacks are null.
struct UpdateRow {
  void* weights;  // of the arithmetic: the master, or else the param
  void* copy;     // the param that has a master
  void* grad;
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;
  float* exp_avg_scales;
  float* exp_avg_sq_scales;
  std::int64_t elements;
  std::int32_t number;
  DType weights_dtype;
  DType copy_dtype;
  DType grad_dtype;
  DType state_dtype;
  bool has_packs;  // each operand's address is a multiple of 4 of its elements
  bool rounds_states_randomly;
  bool rounds_param_randomly;
};

// A gradient whose squares are summed.
struct SumRow {
  const void* grad;
  std::int64_t elements;
  DType dtype;
  bool has_packs;  // of 16 bytes
};

// A tensor whose step is counted, and the settings of its group.
struct CountRow {
  void* step;
  const void* rate;  // or null
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool step_is_double;
  bool rate_is_double;
  bool maximize;
};

// Rows, and the chunks that come before each; `rows` of them are used.
template <class Row, int kRows>
struct RowTable {
  Row row[kRows];
  std::int32_t first_chunk[kRows];
  std::int32_t rows;
};

// The options that all tensors of an update share.
struct UpdateOptions {
  std::uint64_t seed;
  bool unscales_gradients;
};

// The operands and options that the numbers of all steps depend on.
struct CountOptions {
  const float* grad_scale;
  const float* found_inf;
  float* norm;
  const double* sums;  // of the squares of all gradients, by chunk
  std::int64_t chunks;
  double max_norm;
  bool has_norm;
  bool skips_nonfinite;
  bool unscales_gradients;
  bool is_adamw;
};

// The numbers of a step that are the same for all elements of a tensor.
template <class A>
struct StepNumbers {
  A unscale;     // what a gradient that is written is multiplied by
  A factor;      // and what it is multiplied by then, or at once
  A decay;       // 1 - lr weight_decay
  A minus_step;  // of AdamW with the correction of the first moment's bias
  A weight1;     // 1 - beta1
  A beta2;
  A weight2;      // 1 - beta2
  A root_factor;  // 1 / sqrt(1 - beta2^step)
  A eps;
  bool skips;  // the step writes nothing
  std::uint64_t step;
};

}  // namespace transformer_kernels::cuda
