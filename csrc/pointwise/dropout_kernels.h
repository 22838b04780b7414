// SPDX-License-Identifier: MIT
// Dropout's CUDA kernels, compiled in a unit of its own for each storage type T (dropout_typed.cu).
// `packs`: operands are aligned to 16 bytes, and the first element of each row to a counter. No
// CUDA header.
#pragma once

#include "pointwise/dropout_problem.h"

namespace transformer_kernels::cuda {

template <class T>
void run_dropout(const Context& context, const DropoutForwardProblem& p, bool packs);
template <class T>
void run_dropout(const Context& context, const DropoutBackwardProblem& p, bool packs);

}  // namespace transformer_kernels::cuda
