// SPDX-License-Identifier: MIT
#include "moe/router/forward.cuh"

namespace transformer_kernels::cuda {

template void run_router<TFK_TYPE>(const Context&, const MoeRouterForwardProblem&,
                                   const RouterShares&);
template void run_importance<TFK_TYPE>(const Context&, const MoeRouterForwardProblem&,
                                       const RouterShares&, void*);

}  // namespace transformer_kernels::cuda
