// SPDX-License-Identifier: MIT
#include "norm/plain/backward.cuh"

namespace transformer_kernels::cuda {

template void run_norm_backward_plain<TFK_TYPE>(const Context&, const NormBackwardProblem&);
template void sum_norm_bias_gradient<TFK_TYPE>(const Context&, const NormBackwardProblem&);

}  // namespace transformer_kernels::cuda
