// SPDX-License-Identifier: MIT
#include "loss/cross_entropy_backward.cuh"

namespace transformer_kernels::cuda {

template void run_loss_backward<TFK_TYPE>(const Context&, const CrossEntropyBackwardProblem&,
                                          std::size_t);
template void run_scale_gradient<TFK_TYPE>(const Context&, const ScaleGradientProblem&,
                                           std::size_t);

}  // namespace transformer_kernels::cuda
