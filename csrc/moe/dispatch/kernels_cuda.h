// SPDX-License-Identifier: MIT
// Host declarations that the dispatch's CUDA sources share.
#pragma once

#include "moe/dispatch/problem.h"

namespace transformer_kernels::cuda {

template <class T, class Problem>
void run_move(const Context& context, const Problem& problem);

}  // namespace transformer_kernels::cuda
