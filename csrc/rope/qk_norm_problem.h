// SPDX-License-Identifier: MIT
// Checked arguments of qk_norm: a rotation whose rows are normalised before it, or whose gradients
// pass the norm after it.
#pragma once

#include "rope/problem.h"

namespace transformer_kernels {

struct QkNormForwardProblem {
  RopeProblem rope;
  DType weight_dtype;
  const void* q_weight;  // or null, and so the next
  const void* k_weight;
  double eps;
};

struct QkNormBackwardProblem {
  RopeProblem rope;  // of the gradients
  Heads q;           // what was normalised
  Heads k;
  DType weight_dtype;
  const void* q_weight;  // or null, and so all below
  const void* k_weight;
  double eps;
  void* dq_weight;
  void* dk_weight;

  constexpr bool has_sums() const { return dq_weight != nullptr || dk_weight != nullptr; }
};

std::string describe(const QkNormForwardProblem& problem);
std::string describe(const QkNormBackwardProblem& problem);

namespace cpu {
void qk_norm_forward(const Context& context, const QkNormForwardProblem& problem);
void qk_norm_backward(const Context& context, const QkNormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void qk_norm_forward(const Context& context, const QkNormForwardProblem& problem);
void qk_norm_backward(const Context& context, const QkNormBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
