// SPDX-License-Identifier: MIT
#include "norm/rows/forward.cuh"

namespace transformer_kernels::cuda {

template void run_norm_forward_rows<TFK_TYPE>(const Context&, const NormForwardProblem&,
                                              std::size_t);

}  // namespace transformer_kernels::cuda
