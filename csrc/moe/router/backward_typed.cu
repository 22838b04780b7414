// SPDX-License-Identifier: MIT
#include "moe/router/backward.cuh"

namespace transformer_kernels::cuda {

template void run_router_gradient<TFK_TYPE>(const Context&, const MoeRouterBackwardProblem&);

}  // namespace transformer_kernels::cuda
