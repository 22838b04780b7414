// SPDX-License-Identifier: MIT
#include "linear/sm90/launch_gemm.cuh"

namespace transformer_kernels::cuda {

void run_gemm_gated_slope(const Context& context, const GatedProduct& p) {
  if (major_of_b(p.gate) == Major::kK) {
    launch_gated<Epilogue::kGatedSlope, Major::kK>(context, p);
  } else {
    launch_gated<Epilogue::kGatedSlope, Major::kOther>(context, p);
  }
}

}  // namespace transformer_kernels::cuda
