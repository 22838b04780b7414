// SPDX-License-Identifier: MIT
#include "linear/sm90/launch_gemm.cuh"

namespace transformer_kernels::cuda {

void run_gemm_activate_kept(const Context& context, const Product& p) {
  launch_activated<Epilogue::kActivateKept>(context, p);
}

}  // namespace transformer_kernels::cuda
