// SPDX-License-Identifier: MIT
// The family's CUDA kernels, compiled in a unit of its own for each storage type T
// (kernels_typed.cu). `packs`: operands are aligned to 16 bytes. No CUDA header.
#pragma once

#include "pointwise/problem.h"

namespace transformer_kernels::cuda {

template <class T>
void run_pointwise(const Context& context, const PointwiseForwardProblem& p, bool packs);
template <class T>
void run_pointwise(const Context& context, const PointwiseBackwardProblem& p, bool packs);

}  // namespace transformer_kernels::cuda
