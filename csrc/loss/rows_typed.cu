// SPDX-License-Identifier: MIT
#include "loss/cross_entropy_forward.cuh"

namespace transformer_kernels::cuda {

template void run_loss_rows<TFK_TYPE, false>(const Context&, const LossCall&, std::size_t);
template void run_loss_rows<TFK_TYPE, true>(const Context&, const LossCall&, std::size_t);

}  // namespace transformer_kernels::cuda
