// SPDX-License-Identifier: MIT
#include "norm/direct/forward.cuh"

namespace transformer_kernels::cuda {

template void run_norm_forward_direct<TFK_TYPE>(const Context&, const NormForwardProblem&,
                                                std::size_t);

}  // namespace transformer_kernels::cuda
