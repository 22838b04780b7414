// SPDX-License-Identifier: MIT
#include "norm/rows/forward.cuh"

namespace transformer_kernels::cuda {

template void run_mixed_norm_forward_rows<Half>(const Context&, const DropoutNormForwardProblem&,
                                                std::size_t);
template void run_mixed_norm_forward_rows<BFloat16>(const Context&,
                                                    const DropoutNormForwardProblem&, std::size_t);

}  // namespace transformer_kernels::cuda
