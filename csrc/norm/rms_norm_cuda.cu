// SPDX-License-Identifier: MIT
#include "norm/norm_cuda.h"
#include "norm/row_norm_backward.cuh"
#include "norm/row_norm_forward.cuh"

namespace transformer_kernels::cuda {

template void norm_forward<false>(const char* op, const Context& context,
                                  const NormForwardProblem& problem);
template void norm_backward<false>(const char* op, const Context& context,
                                   const NormBackwardProblem& problem);

}  // namespace transformer_kernels::cuda
