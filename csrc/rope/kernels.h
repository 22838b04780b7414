// SPDX-License-Identifier: MIT
// The family's CUDA kernels, compiled in a unit of its own for each storage type T
// (kernels_typed.cu). `packs`: rows are made of aligned packs of 16 bytes. No CUDA header.
#pragma once

#include "rope/problem.h"

namespace transformer_kernels::cuda {

template <class T>
void run_rope(const Context& context, const RopeProblem& p, bool packs);

}  // namespace transformer_kernels::cuda
