// SPDX-License-Identifier: MIT
// The family on CUDA, by member: the kernels of each are built in a translation unit of its own.
#pragma once

#include "norm/row_norm.h"

namespace transformer_kernels::cuda {

template <bool kCenter>
void norm_forward(const char* op, const Context& context, const NormForwardProblem& problem);
template <bool kCenter>
void norm_backward(const char* op, const Context& context, const NormBackwardProblem& problem);

}  // namespace transformer_kernels::cuda
