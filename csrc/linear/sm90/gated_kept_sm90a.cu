// SPDX-License-Identifier: MIT
#include "linear/sm90/launch_gemm.cuh"

namespace transformer_kernels::cuda {

void run_gemm_gated_kept(const Context& context, const GatedProduct& p) {
  launch_gated<Epilogue::kGatedKept, Major::kK>(context, p);
}

}  // namespace transformer_kernels::cuda
