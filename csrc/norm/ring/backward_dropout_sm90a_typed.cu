// SPDX-License-Identifier: MIT
#include "norm/ring/backward.cuh"

namespace transformer_kernels::cuda {

template void run_dropout_norm_backward_ring<TFK_TYPE>(const Context&,
                                                       const DropoutNormBackwardProblem&,
                                                       std::size_t);

}  // namespace transformer_kernels::cuda
