// SPDX-License-Identifier: MIT
#include "moe/dispatch/rows.cuh"

namespace transformer_kernels::cuda {

template void run_move<TFK_TYPE>(const Context&, const SpreadProblem&);
template void run_move<TFK_TYPE>(const Context&, const CombineProblem&);

}  // namespace transformer_kernels::cuda
