// SPDX-License-Identifier: MIT
#pragma once

#include "norm/row_norm.h"

namespace transformer_kernels {
namespace cpu {
void rms_norm_forward(const Context& context, const NormForwardProblem& problem);
void rms_norm_backward(const Context& context, const NormBackwardProblem& problem);
}  // namespace cpu
namespace cuda {
void rms_norm_forward(const Context& context, const NormForwardProblem& problem);
void rms_norm_backward(const Context& context, const NormBackwardProblem& problem);
}  // namespace cuda
}  // namespace transformer_kernels
