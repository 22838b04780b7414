// SPDX-License-Identifier: MIT
// The norm of dropout(x + x_bias) + residual, host side: the problem of a norm and that of dropout,
// which share matrices. Forward, the sum that is normalised is dropout's y; backward, the gradient
// of that sum, the norm's dx, is dropout's dy.
#pragma once

#include "norm/row_norm.h"
#include "pointwise/dropout_problem.h"

namespace transformer_kernels {

struct DropoutNormForwardProblem {
  NormForwardProblem norm;
  DropoutForwardProblem dropout;
};

struct DropoutNormBackwardProblem {
  NormBackwardProblem norm;
  DropoutBackwardProblem dropout;
};

inline std::string describe(const DropoutNormForwardProblem& p) { return describe(p.norm); }
inline std::string describe(const DropoutNormBackwardProblem& p) { return describe(p.norm); }

namespace cpu {
void dropout_norm_forward(const Context& context, const DropoutNormForwardProblem& problem);
void dropout_norm_backward(const Context& context, const DropoutNormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void dropout_norm_forward(const Context& context, const DropoutNormForwardProblem& problem);
void dropout_norm_backward(const Context& context, const DropoutNormBackwardProblem& problem);
}  // namespace cuda

}  // namespace transformer_kernels
