// SPDX-License-Identifier: MIT
#include "linear/sm90/launch_gemm.cuh"

namespace transformer_kernels::cuda {

void run_gemm_gated(const Context& context, const GatedProduct& p) {
  launch_gated<Epilogue::kGated, Major::kK>(context, p);
}

}  // namespace transformer_kernels::cuda
