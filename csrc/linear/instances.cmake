# SPDX-License-Identifier: MIT
# The units that instantiate Hopper's products with activations; see cmake/cuda.cmake.

set(activated "(const Context&, const Product&, Parts)")
set(gated "(const Context&, const GatedProduct&)")

tfk_cuda_instances(linear/sm90/activate_sm90a linear/sm90/launch_gemm.cuh
                   "launch_activated<Epilogue::kActivate>${activated}")
tfk_cuda_instances(linear/sm90/activate_kept_sm90a linear/sm90/launch_gemm.cuh
                   "launch_activated<Epilogue::kActivateKept>${activated}")
tfk_cuda_instances(linear/sm90/gated_sm90a linear/sm90/launch_gemm.cuh
                   "launch_gated<Epilogue::kGated, Major::kK>${gated}")
tfk_cuda_instances(linear/sm90/gated_kept_sm90a linear/sm90/launch_gemm.cuh
                   "launch_gated<Epilogue::kGatedKept, Major::kK>${gated}")
tfk_cuda_instances(linear/sm90/gated_slope_sm90a linear/sm90/launch_gemm.cuh
                   "launch_gated<Epilogue::kGatedSlope, Major::kK>${gated}"
                   "launch_gated<Epilogue::kGatedSlope, Major::kOther>${gated}")
