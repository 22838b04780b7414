// SPDX-License-Identifier: MIT
#include "norm/rows/forward.cuh"

namespace transformer_kernels::cuda {

template void run_dropout_norm_forward_bulk<TFK_TYPE>(const Context&,
                                                      const DropoutNormForwardProblem&,
                                                      std::size_t);

}  // namespace transformer_kernels::cuda
