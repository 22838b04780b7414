// SPDX-License-Identifier: MIT
#include "norm/ring/backward.cuh"

namespace transformer_kernels::cuda {

template void run_mixed_norm_backward_ring<Half>(const Context&, const DropoutNormBackwardProblem&,
                                                 std::size_t);
template void run_mixed_norm_backward_ring<BFloat16>(const Context&,
                                                     const DropoutNormBackwardProblem&,
                                                     std::size_t);

}  // namespace transformer_kernels::cuda
