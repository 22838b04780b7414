// SPDX-License-Identifier: MIT
#include "norm/ring/backward.cuh"

namespace transformer_kernels::cuda {

template void run_norm_backward_ring<TFK_TYPE>(const Context&, const NormBackwardProblem&,
                                               std::size_t);

}  // namespace transformer_kernels::cuda
