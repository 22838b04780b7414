// SPDX-License-Identifier: MIT
// Checked arguments of the norm of dropout(x + x_bias) + residual: the problem of a norm and that
// of dropout, which share matrices. Forward, the sum that is normalised is dropout's y; backward,
// the gradient of that sum, the norm's dx, is dropout's dy.
#pragma once

#include "norm/problem.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels {

struct DropoutNormForwardProblem {
  NormForwardProblem norm;
  DropoutForwardProblem dropout;
  DType branch_dtype;  // of x and y
};

struct DropoutNormBackwardProblem {
  NormBackwardProblem norm;
  DropoutBackwardProblem dropout;
  DType branch_dtype;  // of dy and dx
};

// Whether the branch has 16 bits beside sums of float32. All else is then as of float32 rows.
template <class Problem>
constexpr bool is_mixed(const Problem& p) {
  return p.branch_dtype != p.norm.dtype;
}

template <class Problem>
std::string describe_with_branch(const Problem& p) {
  return describe(p.norm) + (is_mixed(p) ? concat(", branch ", name_of(p.branch_dtype)) : "");
}

inline std::string describe(const DropoutNormForwardProblem& p) { return describe_with_branch(p); }
inline std::string describe(const DropoutNormBackwardProblem& p) { return describe_with_branch(p); }

namespace cpu {
void dropout_norm_forward(const Context& context, const DropoutNormForwardProblem& problem);
void dropout_norm_backward(const Context& context, const DropoutNormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void dropout_norm_forward(const Context& context, const DropoutNormForwardProblem& problem);
void dropout_norm_backward(const Context& context, const DropoutNormBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
