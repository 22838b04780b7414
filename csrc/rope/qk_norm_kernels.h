// SPDX-License-Identifier: MIT
// qk_norm's CUDA kernels, compiled in a unit of its own for each storage type T (qk_norm_typed.cu).
// `packs`: rows are made of aligned packs of 16 bytes, no more than a warp's lanes own. No CUDA
// header.
#pragma once

#include "rope/qk_norm_problem.h"

namespace transformer_kernels::cuda {

template <class T>
void run_qk_norm(const Context& context, const QkNormForwardProblem& p, bool packs);
template <class T>
void run_qk_norm(const Context& context, const QkNormBackwardProblem& p, bool packs);

}  // namespace transformer_kernels::cuda
