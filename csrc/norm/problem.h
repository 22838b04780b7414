// SPDX-License-Identifier: MIT
// Checked arguments of the family, as plain rows: the problems that its engines take. layer_norm
// and rms_norm differ only in whether the mean is subtracted, and share everything below.
#pragma once

#include <string>

#include "core/rows.h"
#include "transformer_kernels/context.h"

namespace transformer_kernels {

struct NormForwardProblem {
  bool center;  // layer_norm: subtract the mean
  DType dtype;
  DType weight_dtype;  // of weight and bias; `dtype` where both are absent
  std::int64_t rows;
  std::int64_t cols;
  Rows x;
  Rows residual;
  Rows y;
  Rows sum;
  const void* weight;
  const void* bias;
  void* mean;  // statistics are of accumulate_t<dtype>
  void* rstd;
  double eps;
  bool zero_centered_weight;
  const char* op;  // names the member in messages
};

struct NormBackwardProblem {
  bool center;
  DType dtype;
  DType weight_dtype;
  std::int64_t rows;
  std::int64_t cols;
  Rows dy;
  Rows dsum;
  Rows x;
  Rows dx;
  const void* mean;
  const void* rstd;
  const void* weight;
  void* dweight;
  void* dbias;
  bool zero_centered_weight;
  const char* op;
};

std::string describe(const NormForwardProblem& problem);
std::string describe(const NormBackwardProblem& problem);

namespace cpu {
void norm_forward(const Context& context, const NormForwardProblem& problem);
void norm_backward(const Context& context, const NormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void norm_forward(const Context& context, const NormForwardProblem& problem);
void norm_backward(const Context& context, const NormBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
