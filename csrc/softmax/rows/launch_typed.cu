// SPDX-License-Identifier: MIT
#include "softmax/rows/launch.cuh"

namespace transformer_kernels::cuda {

template void run_softmax_rows<TFK_TYPE>(const Context&, const SoftmaxForwardProblem&, std::size_t);
template void run_softmax_rows<TFK_TYPE>(const Context&, const SoftmaxBackwardProblem&,
                                         std::size_t);

}  // namespace transformer_kernels::cuda
