// SPDX-License-Identifier: MIT
// Checked arguments of token_log_probs, as plain rows.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"
#include "transformer_kernels/loss/token_log_probs.h"

namespace transformer_kernels {

// The arguments of both passes. Numbers of a row are of the arithmetic's type.
struct TokenLogProbsProblem {
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;
  const void* x;
  std::int64_t x_stride;
  const void* target;
  DType target_dtype;
  std::int64_t ignore_index;
  double softcap;

  constexpr std::int64_t token(std::int64_t row) const {
    return target_dtype == DType::kInt64 ? static_cast<const std::int64_t*>(target)[row]
                                         : static_cast<const std::int32_t*>(target)[row];
  }
  constexpr bool is_class(std::int64_t token) const { return token >= 0 && token < cols; }
};

// Each result may be null.
struct TokenLogProbsForwardProblem : TokenLogProbsProblem {
  void* log_probs;
  void* entropy;
  void* accuracy;
  void* top;
  void* spread;
  void* mean;
};

struct TokenLogProbsBackwardProblem : TokenLogProbsProblem {
  const void* dlog_probs;      // may be null, as the next two and mean
  const void* dentropy;        //
  const void* divisor;         //
  std::int64_t dentropy_step;  // from one row to the next: 0 or 1
  const void* top;
  const void* spread;
  const void* mean;
  void* dx;
  std::int64_t dx_stride;
  bool accumulates;
};

std::string describe(const TokenLogProbsForwardProblem& problem);
std::string describe(const TokenLogProbsBackwardProblem& problem);

namespace cpu {
void token_log_probs_forward(const Context& context, const TokenLogProbsForwardProblem& problem);
void token_log_probs_backward(const Context& context, const TokenLogProbsBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void token_log_probs_forward(const Context& context, const TokenLogProbsForwardProblem& problem);
void token_log_probs_backward(const Context& context, const TokenLogProbsBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
