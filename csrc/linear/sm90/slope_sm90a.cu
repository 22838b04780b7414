// SPDX-License-Identifier: MIT
#include "linear/bias_gradient.h"
#include "linear/sm90/launch_gemm.cuh"

namespace transformer_kernels::cuda {

void run_gemm_slope(const Context& context, const Product& p) {
  launch_activated<Epilogue::kSlope>(context, p);
  bias_gradient(context, p);
}

}  // namespace transformer_kernels::cuda
